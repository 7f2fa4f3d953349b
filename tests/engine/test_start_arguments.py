"""What each device's engine is started with; no engine is (specification section 10)."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen2Config

from mempo.agent.conversation import Conversation
from mempo.command.cli import compose
from mempo.config import DEFAULT_TOOLS, EngineConfig, ToolConfig
from mempo.data.tasks import TaskSets
from mempo.engine import vllm_engine
from mempo.engine.start_arguments import (
    Device,
    Use,
    cpu_arguments,
    device_arguments,
    engine_device,
    gpu_arguments,
    shared_arguments,
)
from mempo.evaluation.models import EvaluatedModel
from mempo.evaluation.standalone import start_engine
from mempo.training.datamodule import RolloutDataModule
from tests.support.small_tokenizers import make_tokenizer


def test_shared_arguments() -> None:
    assert shared_arguments(EngineConfig(max_num_seqs=8), Use("bfloat16"), distributed=False) == {
        "dtype": "bfloat16",
        "max_num_seqs": 8,
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": 1,
        "use_tqdm_on_load": False,
        "scheduling_policy": "fcfs",
        "async_scheduling": False,
    }


def test_shared_arguments_that_settings_change() -> None:
    plain = shared_arguments(EngineConfig(), Use("bfloat16"), distributed=False)
    config = EngineConfig(dtype="float32", tensor_parallel=2)
    changed = shared_arguments(config, Use("bfloat16", None, True, 90), distributed=True)
    assert {name: value for name, value in changed.items() if plain.get(name) != value} == {
        "dtype": "float32",
        "load_format": "dummy",
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "external_launcher",
        "distributed_timeout_seconds": 90,
        "cpu_distributed_timeout_seconds": 90,
    }


def test_cpu_arguments() -> None:
    device = cpu_arguments(EngineConfig(max_num_seqs=8, cpu_kv_cache_gib=1.2), context_length=300)
    assert device.arguments == {
        "enforce_eager": True,
        "max_model_len": 300,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 300,
    }
    # vLLM reads whole GiB: what was asked for is rounded up.
    assert device.environment == {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
    }
    assert device.memory_setting == "engine.cpu_kv_cache_gib"


def test_a_cpu_step_takes_a_token_of_every_request() -> None:
    """More requests than a prompt has tokens: vLLM refuses fewer tokens a step than requests."""
    device = cpu_arguments(EngineConfig(max_num_seqs=512), context_length=300)
    assert device.arguments["max_num_batched_tokens"] == 512


def test_gpu_arguments() -> None:
    device = gpu_arguments(EngineConfig(gpu_memory_utilization=0.3), 700)
    assert device.arguments == {
        "gpu_memory_utilization": 0.3,
        "enable_sleep_mode": True,
        "max_model_len": 700,
        "max_num_batched_tokens": 8192,
    }
    assert device.environment == {}
    assert device.memory_setting == "engine.gpu_memory_utilization"


def test_gpu_memory_of_keys_and_values_by_itself() -> None:
    config = EngineConfig(gpu_kv_cache_gib=1.5, gpu_step_tokens=64, max_num_seqs=100)
    device = gpu_arguments(config, None)
    assert device.arguments == {
        "gpu_memory_utilization": 0.4,
        "enable_sleep_mode": True,
        "max_model_len": -1,  # as long as fits
        "max_num_batched_tokens": 100,
        "kv_cache_memory_bytes": 1610612736,
    }
    assert device.memory_setting == "engine.gpu_kv_cache_gib"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("length", "needed", "on_cpu", "on_gpu"),
    [
        (64, None, 64, 64),
        (64, 500, 64, 64),
        (None, None, 640, -1),  # the model's own, on a GPU if that fits
        (None, 500, 500, 500),
        (None, 640, 640, -1),
        (None, 9000, 640, -1),
    ],
)
def test_how_long_contexts_are(
    device: Device,
    length: int | None,
    needed: int | None,
    on_cpu: int,
    on_gpu: int,
    tmp_path: Path,
) -> None:
    Qwen2Config(max_position_embeddings=640).save_pretrained(tmp_path)
    model = tmp_path if length is None else tmp_path / "missing"
    config = EngineConfig(max_model_len=length)
    found = device_arguments(str(model), config, device, Use(needed=needed))
    assert found.arguments["max_model_len"] == (on_gpu if device == "cuda" else on_cpu)
    if device == "cpu":
        assert found.arguments["max_num_batched_tokens"] == max(on_cpu, 128)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_device_is_the_trainers(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``trainer=cpu`` on a machine with a GPU too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    found = {choice: engine_device(choice) for choice in ("auto", "cpu", "gpu")}
    assert found == {"auto": "cuda" if gpu else "cpu", "cpu": "cpu", "gpu": "cuda"}


def test_both_programs_start_engines_on_the_trainers_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What ``vllm.LLM`` would be started with, on a machine that has a GPU."""
    Qwen2Config(max_position_embeddings=640).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    started: list[Device] = []
    slept: list[int] = []

    def start(model: str, config: EngineConfig, use: Use, device: Device) -> Any:
        started.append(device)
        return SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=64),
            apply_model=lambda function: [],
            sleep=lambda level: slept.append(level),
        )

    monkeypatch.setattr(vllm_engine, "_start", start)
    monkeypatch.setattr(vllm_engine, "host_state_kept", nullcontext)
    conversation = Conversation(make_tokenizer("bytes"), "Answer.")
    for choice in ("auto", "cpu", "gpu"):
        config = compose("evaluate", [f"trainer.accelerator={choice}"])
        start_engine(EvaluatedModel("a", "a", str(tmp_path), conversation, config), config)
        module = RolloutDataModule(
            compose("train", [f"trainer.accelerator={choice}"]),
            str(tmp_path),
            make_tokenizer("bytes"),
            TaskSets([], [], {}),
        )
        module.trainer = SimpleNamespace(global_rank=0, world_size=1)  # type: ignore[assignment]
        module.setup("fit")
    assert started == ["cuda", "cuda", "cpu", "cpu", "cuda", "cuda"]
    # In training the engine sleeps at once, on a GPU: nothing is sampled before the first sync.
    assert slept == [2, 2]


def test_both_programs_stop_at_the_tags_of_the_runs_tools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Qwen2Config(max_position_embeddings=640).save_pretrained(tmp_path)
    stops: list[list[str]] = []
    started = vllm_engine.Engine.__init__

    def start(engine: Any, *arguments: Any) -> None:
        stops.append(list(arguments[4]))

    monkeypatch.setattr(vllm_engine.Engine, "__init__", start)
    monkeypatch.setattr(vllm_engine.Engine, "sleep", lambda engine: None)
    assert list(inspect.signature(started).parameters)[5] == "stop_strings"
    counter = ToolConfig("tests.support.own_tools.Counter", "count", "to count")
    for tools, own in ((DEFAULT_TOOLS, []), ((*DEFAULT_TOOLS, counter), ["</count>"])):
        config = dataclasses.replace(compose("train"), tools=tools)
        module = RolloutDataModule(
            config, str(tmp_path), make_tokenizer("bytes"), TaskSets([], [], {})
        )
        module.trainer = SimpleNamespace(global_rank=0, world_size=1)  # type: ignore[assignment]
        module.setup("fit")
        model = EvaluatedModel("a", "a", str(tmp_path), module.conversation, config)
        start_engine(model, config)
        assert stops == [["</search>", "</access>", *own, "</answer>"]] * 2
        stops.clear()


def test_start_arguments_need_no_vllm() -> None:
    program = "import sys, mempo.engine.start_arguments; assert 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
