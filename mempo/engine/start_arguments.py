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

ENVIRONMENT: Final[Mapping[str, str]] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Variables that every start sets; vLLM reads them as it is imported."""

ENVIRONMENT_DEFAULTS: Final[Mapping[str, str]] = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables that a start sets where there are none."""


@dataclass(frozen=True)
class DeviceArguments:
    """What one kind of device adds: arguments of ``vllm.LLM``, variables of the environment, and
    the setting that says how much of its memory the engine gets."""

    arguments: Mapping[str, Any]
    memory_setting: str
    environment: Mapping[str, str] = field(default_factory=dict)


def shared_arguments(config: EngineConfig, dtype: str, distributed: bool) -> dict[str, Any]:
    """The arguments of every device. ``dtype`` is what ``engine.dtype=auto`` means."""
    arguments: dict[str, Any] = {
        "dtype": dtype if config.dtype == "auto" else config.dtype,
        "max_num_seqs": config.max_num_seqs,
        "enable_prefix_caching": config.enable_prefix_caching,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": config.tensor_parallel,
        "use_tqdm_on_load": False,
    }
    if config.max_model_len is not None:
        arguments["max_model_len"] = config.max_model_len
    if distributed:  # this process's device is its own, and parts may be in other processes
        arguments["distributed_executor_backend"] = "external_launcher"
    return arguments


def cpu_arguments(config: EngineConfig, context_length: int) -> DeviceArguments:
    """Without compiled graphs, and with every prompt prefilled at once: seeded requests fail on the
    CPU when a prompt is prefilled in chunks. Nor does the sampler compile: it would need a C++
    compiler and seconds of every start, for the same numbers no sooner. ``context_length`` in
    tokens."""
    return DeviceArguments(
        {
            "enforce_eager": True,
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


def gpu_arguments(config: EngineConfig) -> DeviceArguments:
    """A share of the device's memory, which the engine can give back while it sleeps."""
    return DeviceArguments(
        {
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "enable_sleep_mode": True,
        },
        "engine.gpu_memory_utilization",
    )


def engine_device(accelerator: Literal["auto", "cpu", "gpu"]) -> Device:
    """The kind of device that an engine runs on: the trainer's, as ``trainer.accelerator`` says."""
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if accelerator == "gpu" else "cpu"


def device_arguments(model: str, config: EngineConfig, device: Device) -> DeviceArguments:
    """Those of a kind of device."""
    if device == "cuda":
        return gpu_arguments(config)
    return cpu_arguments(config, _context_length(model, config))


def _context_length(model: str, config: EngineConfig) -> int:
    if config.max_model_len is not None:
        return config.max_model_len
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(model).max_position_embeddings)
