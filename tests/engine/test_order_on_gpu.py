"""In which order an engine's memory is asked for on a GPU; the device itself is left out
(specification section 10)."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import EngineConfig
from mempo.engine import vllm_engine
from mempo.engine.errors import EngineError
from mempo.engine.host_state import host_state_kept
from mempo.engine.interface import Sampling
from mempo.engine.start_arguments import Device, Use
from mempo.engine.sync_proof import renaming
from mempo.engine.vllm_engine import Engine

WEIGHTS = {"a": torch.ones(2)}


class RecordingLLM:
    """Notes what is asked of ``vllm.LLM``; takes weights and gives digests as it does."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.model_config = SimpleNamespace(max_model_len=64)
        self.llm_engine = SimpleNamespace(add_request=lambda *_: calls.append("request"))
        self.held = {"a": "none"}

    def apply_model(self, function: Callable[..., Any]) -> list[Any]:
        return [str] if function is renaming else [{}]

    def collective_rpc(self, name: str, kwargs: Any = None) -> list[Any]:
        if name == "reset_weights":
            self.held = {"a": "zero"}
        if name == "reload_weights":
            for key, _ in kwargs["weights_iterator"]:
                self.held[key] = "loaded"
            self.calls.append("load")
        return [dict(self.held)]

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {','.join(tags)}")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def reset_prefix_cache(self) -> bool:
        self.calls.append("forget prefixes")
        return True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def start(model: str, config: EngineConfig, use: Use, device: Device) -> Any:
        made.append("build")
        return RecordingLLM(made)

    monkeypatch.setattr(vllm_engine, "_start", start)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.append("give back"))
    return made


def engine(use: Use) -> Engine:
    return Engine("model", EngineConfig(), use, device="cuda")


def ask(one: Engine) -> None:
    one._keys.clear()
    one.submit("key", [1, 2], 3, 0, Sampling())


def test_weights_wake_before_keys_and_values(calls: list[str]) -> None:
    one = engine(Use(synced=True))
    one.sleep()
    one.sync(WEIGHTS.items())
    ask(one)
    ask(one)
    one._keys.clear()
    one.sleep()
    one.sync(WEIGHTS.items())
    one.sleep()  # nothing was asked in between
    assert calls == [
        "build", "sleep 2",
        "wake weights", "load", "forget prefixes", "give back", "wake kv_cache", "request",
        "request", "sleep 2",
        "wake weights", "load", "forget prefixes", "give back", "wake kv_cache", "sleep 2",
    ]  # fmt: skip


def test_nothing_is_sampled_from_an_engine_without_weights(calls: list[str]) -> None:
    one = engine(Use(synced=True))
    with pytest.raises(EngineError, match="has no weights yet"):
        ask(one)
    one.sync(WEIGHTS.items())
    ask(one)
    one._keys.clear()
    one.sleep()
    with pytest.raises(EngineError, match="asleep"):
        ask(one)
    ask(engine(Use()))  # of a folder whose weights were read


def test_the_host_is_as_before() -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    random.seed(3), np.random.seed(4), torch.manual_seed(5)
    expected = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(3), np.random.seed(4), torch.manual_seed(5)
    try:
        with host_state_kept():
            torch.set_num_threads(threads + 1)
            torch.set_float32_matmul_precision("medium" if precision != "medium" else "high")
            random.seed(0), np.random.seed(0), torch.manual_seed(0)
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (
            threads,
            precision,
        )
        assert (random.random(), np.random.random(), float(torch.rand(()))) == expected
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
