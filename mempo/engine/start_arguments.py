"""What vLLM is started with: the same on every device, on a CPU, and on a GPU.

All of it keeps the engine in this process and its sampling deterministic (specification,
section 10). Nothing here imports vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from mempo.config import EngineConfig

Device = Literal["cpu", "cuda"]

AS_FITS: Final = -1
"""A ``max_model_len`` that vLLM lowers from the model's own until a request of it fits."""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # On GPUs vLLM would take its second model runner for dense models, which draws other samples;
    # CPUs have the first alone, on which the tests run.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""Variables that every start sets; vLLM reads them as it is imported."""

ENVIRONMENT_DEFAULTS: Final[Mapping[str, str]] = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables that a start sets where there are none."""


_SCHEDULING: Final[Mapping[str, Any]] = {"scheduling_policy": "fcfs", "async_scheduling": False}
"""The parts of a shared engine schedule alike, and a step's tokens come with that step."""


@dataclass(frozen=True)
class DeviceArguments:
    """What one kind of device adds: arguments of ``vllm.LLM``, variables of the environment, and
    the setting that says how much of its memory the engine gets."""

    arguments: Mapping[str, Any]
    memory_setting: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Use:
    """What the engine is started for. ``dtype`` is what ``engine.dtype=auto`` means, ``needed`` the
    longest context that will be asked of it where ``engine.max_model_len`` is null (``None``: as
    long as the model can). ``synced``: weights are synced before anything is sampled, so that the
    folder's own need not be read. ``timeout_s``: how long its parts wait for one another."""

    dtype: str = "float32"
    needed: int | None = None
    synced: bool = False
    timeout_s: int = 1800


ANY_USE: Final = Use()


def sampler_choices() -> dict[str, Any]:
    """Of what every engine is started with, for a run's record: on GPUs vLLM would choose itself,
    and not as on CPUs."""
    return {
        "model_runner": 1 if ENVIRONMENT["VLLM_USE_V2_MODEL_RUNNER"] == "0" else 2,
        **_SCHEDULING,
    }


def shared_arguments(config: EngineConfig, use: Use, distributed: bool) -> dict[str, Any]:
    """The arguments of every device."""
    arguments: dict[str, Any] = {
        "dtype": use.dtype if config.dtype == "auto" else config.dtype,
        "max_num_seqs": config.max_num_seqs,
        "enable_prefix_caching": config.enable_prefix_caching,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": config.tensor_parallel,
        "use_tqdm_on_load": False,
        **_SCHEDULING,
    }
    if use.synced:
        arguments["load_format"] = "dummy"
    if distributed:  # this process's device is its own, and parts may be in other processes
        arguments["distributed_executor_backend"] = "external_launcher"
        arguments["distributed_timeout_seconds"] = use.timeout_s
        arguments["cpu_distributed_timeout_seconds"] = use.timeout_s
    return arguments


def cpu_arguments(config: EngineConfig, context_length: int) -> DeviceArguments:
    """``context_length`` in tokens.

    Without compiled graphs, and with every prompt prefilled at once: seeded requests fail on the
    CPU when a prompt is prefilled in chunks. Nor does the sampler compile: it would need a C++
    compiler and seconds of every start, for the same numbers no sooner.
    """
    return DeviceArguments(
        {
            "enforce_eager": True,
            "max_model_len": context_length,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(context_length, config.max_num_seqs),
        },
        "engine.cpu_kv_cache_gib",
        {
            "VLLM_CPU_KVCACHE_SPACE": str(math.ceil(config.cpu_kv_cache_gib)),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TORCHDYNAMO_DISABLE": "1",
        },
    )


def gpu_arguments(config: EngineConfig, context_length: int | None) -> DeviceArguments:
    """``context_length`` in tokens; ``None``: as long as keys and values of a request fit, and the
    model can.

    A share of the device's memory, which the engine can give back while it sleeps. Of large steps,
    which vLLM chooses on large cards, the trial run that measures what is left for keys and values
    would take several GiB.
    """
    arguments: dict[str, Any] = {
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enable_sleep_mode": True,
        "max_model_len": AS_FITS if context_length is None else context_length,
        "max_num_batched_tokens": max(config.gpu_step_tokens, config.max_num_seqs),
    }
    setting = "engine.gpu_memory_utilization"
    if config.gpu_kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(config.gpu_kv_cache_gib * 2**30)
        setting = "engine.gpu_kv_cache_gib"
    return DeviceArguments(arguments, setting)


def engine_device(accelerator: Literal["auto", "cpu", "gpu"]) -> Device:
    """The kind of device that an engine runs on: the trainer's, as ``trainer.accelerator`` says."""
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if accelerator == "gpu" else "cpu"


def device_arguments(model: str, config: EngineConfig, device: Device, use: Use) -> DeviceArguments:
    """Those of a kind of device."""
    length = config.max_model_len
    own = _own_length(model) if length is None else 0
    if device == "cuda":
        needed = use.needed if use.needed is not None and use.needed < own else None
        return gpu_arguments(config, length or needed)
    return cpu_arguments(config, length or min(use.needed or own, own))


def _own_length(model: str) -> int:
    """The model's own context in tokens."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(model).get_text_config().max_position_embeddings)
