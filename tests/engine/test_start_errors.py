"""The remedy for each reason for which vLLM does not start (around the method).

The texts are vLLM 0.32's own: raised by its functions where they can be called without a device,
else as its source writes them.
"""

from __future__ import annotations

import re

import pytest

from mempo.engine.errors import EngineError
from mempo.engine.start_errors import check_build, start_remedy

GPU, CPU = "engine.gpu_memory_utilization", "engine.cpu_kv_cache_gib"
FREE = (
    "Free memory on device cuda:0 (20.1/79.2 GiB) on startup is less than desired GPU memory "
    "utilization (0.4, 31.7 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
    "other processes."
)
KV = (
    "Available memory on node 0 (3.2/7.8 GiB) on kv cache allocation is less than requested memory "
    "for kv (64.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU "
    "memory used by other processes."
)
LENGTH = (
    "User-specified max_model_len (999999) is greater than the derived max_model_len "
    "(max_position_embeddings=256 or model_max_length=None in model's config.json)."
)
SAMPLER = (
    "CUDA out of memory occurred when warming up sampler with 128 dummy requests. Please try "
    "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
MEMORY = "CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 79.2 GiB"


def cache_message(available: int) -> str:
    from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory

    with pytest.raises(ValueError, match="increasing `gpu_memory_utilization`") as caught:
        _check_enough_kv_cache_memory(available, lambda: 4 * 2**30, 32768, lambda memory: 8192)
    return str(caught.value)


@pytest.mark.parametrize("memory", [GPU, CPU])
def test_a_cache_that_is_too_small_is_enlarged(memory: str) -> None:
    assert start_remedy(cache_message(0), memory) == (
        f"\nThe weights take all of the engine's memory: raise {memory}."
    )
    remedy = start_remedy(cache_message(2**30), memory)
    assert remedy == f"\nRaise {memory}, or lower engine.max_model_len."


@pytest.mark.parametrize(
    ("message", "memory", "remedy"),
    [
        (FREE, GPU, f"Lower {GPU}, or end what else uses this GPU's memory."),
        (KV, CPU, f"Lower {CPU}, or end what else uses this machine's memory."),
        (LENGTH, GPU, "Lower engine.max_model_len, or leave it out for the model's own."),
        (SAMPLER, GPU, f"Lower engine.max_num_seqs or {GPU}."),
        (
            MEMORY,
            GPU,
            f"Lower {GPU} or engine.max_num_seqs, raise engine.tensor_parallel, or end what else "
            "uses this device's memory.",
        ),
    ],
    ids=["free", "kv", "length", "sampler", "memory"],
)
def test_each_reason_has_its_remedy(message: str, memory: str, remedy: str) -> None:
    assert start_remedy(message, memory) == f"\n{remedy}"


@pytest.mark.parametrize(
    "message",
    [
        "Model architectures ['FooForCausalLM'] are not supported for now.",
        "Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
    ],
)
def test_other_reasons_say_nothing_of_memory(message: str) -> None:
    assert start_remedy(message, GPU) == ""


def test_the_texts_are_in_the_installed_version() -> None:
    """A version that words them otherwise needs other keys."""
    import inspect

    from vllm.config import model
    from vllm.v1.worker import cpu_worker, gpu_model_runner, utils

    for module, words in (
        (utils, "is less than desired GPU memory utilization"),
        (cpu_worker, "is less than desired CPU memory utilization"),
        (cpu_worker, "is less than requested memory for kv"),
        (gpu_model_runner, "when warming up sampler"),
        (model, "greater than the derived max_model_len"),
    ):
        # String literals that stand one after the other are one text.
        source = re.sub(r'"\s+f?"', "", inspect.getsource(module))
        assert words in source, words


def test_a_build_for_another_device_is_named() -> None:
    check_build("cpu", for_cpus=True)
    check_build("cuda", for_cpus=False)
    with pytest.raises(EngineError, match=r"the CPU, .* for GPUs: take trainer.accelerator=gpu"):
        check_build("cpu", for_cpus=False)
    with pytest.raises(EngineError, match=r"a GPU, .* for CPUs: take trainer.accelerator=cpu"):
        check_build("cuda", for_cpus=True)
