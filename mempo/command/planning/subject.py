"""What a measurement is told: the part of a configuration that the memory of an update hangs on."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from mempo.command.planning.passes import CPU_LOGIT_CHUNK_ELEMENTS, LOGIT_CHUNK_ELEMENTS
from mempo.config import ArchitectureConfig, Config, LoraSettings, ShardingConfig
from mempo.runtime.errors import ConfigError


@dataclass(frozen=True)
class Subject:
    """One micro-batch of ``tokens`` tokens on one of ``processes``. The model is built from
    ``architecture``, or where that is ``None`` from the ``config.json`` at ``path``;
    ``reference``: a frozen copy stands beside it."""

    architecture: ArchitectureConfig | None
    path: str | None
    dtype: Literal["float32", "bfloat16"]
    attention: str
    gradient_checkpointing: bool | Literal["selective"]
    lora: LoraSettings | None
    strategy: str
    processes: int
    sharding: ShardingConfig
    tokens: int
    logit_elements: int
    entropy: Literal["measured", "trained"]
    reference: bool


def subject_of(config: Config, world_size: int) -> Subject:
    """The update of ``config`` on ``world_size`` devices.

    Sizes of a model of ``conf/model/`` stand there, and a Qwen2 or Llama model is built from them;
    another model's are read from its folder. Raises ``ConfigError`` where there is neither.
    """
    model = config.model
    if model.architecture is None and model.path is None:
        raise ConfigError(
            "model.architecture and model.path are null, and dry_run=measured builds the model "
            "from one of them: choose a model of conf/model/, or give model.path"
        )
    on_cpu = config.trainer.accelerator == "cpu"
    return Subject(
        architecture=model.architecture,
        path=model.path,
        dtype=model.dtype,
        attention=model.attention,
        gradient_checkpointing=model.gradient_checkpointing,
        lora=model.lora,
        strategy=config.trainer.strategy,
        processes=world_size,
        sharding=config.trainer.sharding,
        tokens=config.optimizer.micro_batch_tokens,
        logit_elements=CPU_LOGIT_CHUNK_ELEMENTS if on_cpu else LOGIT_CHUNK_ELEMENTS,
        entropy="trained" if config.loss.entropy_coefficient > 0 else "measured",
        reference=config.loss.kl_coefficient > 0 and model.lora is None,
    )
