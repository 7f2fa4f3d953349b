"""What each device's engine is started with; no engine is (specification section 10)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config

from mempo.config import EngineConfig
from mempo.engine.start_arguments import (
    cpu_arguments,
    device_arguments,
    gpu_arguments,
    shared_arguments,
)


def test_shared_arguments() -> None:
    assert shared_arguments(EngineConfig(max_num_seqs=8), "bfloat16", distributed=False) == {
        "dtype": "bfloat16",
        "max_num_seqs": 8,
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": 1,
        "use_tqdm_on_load": False,
    }


def test_shared_arguments_that_settings_change() -> None:
    plain = shared_arguments(EngineConfig(), "bfloat16", distributed=False)
    config = EngineConfig(dtype="float32", max_model_len=64, tensor_parallel=2)
    changed = shared_arguments(config, "bfloat16", distributed=True)
    assert {name: value for name, value in changed.items() if plain.get(name) != value} == {
        "dtype": "float32",
        "max_model_len": 64,
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "external_launcher",
    }


def test_cpu_arguments() -> None:
    device = cpu_arguments(EngineConfig(max_num_seqs=8, cpu_kv_cache_gib=1.2), context_length=300)
    assert device.arguments == {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 300,
    }
    # vLLM reads whole GiB: what was asked for is rounded up.
    assert device.environment == {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    assert device.memory_setting == "engine.cpu_kv_cache_gib"


def test_a_cpu_step_takes_a_token_of_every_request() -> None:
    """More requests than a prompt has tokens: vLLM refuses fewer tokens a step than requests."""
    device = cpu_arguments(EngineConfig(max_num_seqs=512), context_length=300)
    assert device.arguments["max_num_batched_tokens"] == 512


def test_gpu_arguments() -> None:
    device = gpu_arguments(EngineConfig(gpu_memory_utilization=0.3))
    assert device.arguments == {"gpu_memory_utilization": 0.3, "enable_sleep_mode": True}
    assert device.environment == {}
    assert device.memory_setting == "engine.gpu_memory_utilization"


@pytest.mark.parametrize("gpu", [False, True])
def test_the_device_decides(gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``engine.max_model_len`` the CPU's longest prompt is the model's context."""
    Qwen2Config(max_position_embeddings=640).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    config = EngineConfig()
    expected = gpu_arguments(config) if gpu else cpu_arguments(config, 640)
    assert device_arguments(str(tmp_path), config) == expected
    short = EngineConfig(max_model_len=64)
    expected = gpu_arguments(short) if gpu else cpu_arguments(short, 64)
    assert device_arguments(str(tmp_path / "missing"), short) == expected


def test_start_arguments_need_no_vllm() -> None:
    program = "import sys, mempo.engine.start_arguments; assert 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
