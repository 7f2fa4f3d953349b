"""Work done ahead on a thread (around section 4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mempo.agent.conversation import Conversation
from mempo.command.cli import compose
from mempo.engine.interface import Generation
from mempo.training import datamodule
from mempo.training.collect_ahead import BackgroundWork
from mempo.training.datamodule import RolloutDataModule
from tests.support.small_tokenizers import make_tokenizer
from tests.support.uneven_cases import ShownEngine, task_sets


def test_result_waits_for_the_work() -> None:
    go = threading.Event()

    def work(stopped: Callable[[], bool]) -> int:
        go.wait(10)
        return 7

    ahead = BackgroundWork(work)
    go.set()
    assert ahead.result() == 7


def test_what_the_work_raises_comes_with_the_result() -> None:
    def work(stopped: Callable[[], bool]) -> int:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        BackgroundWork(work).result()


def test_stop_waits_until_the_work_has_stopped() -> None:
    ended: list[str] = []

    def work(stopped: Callable[[], bool]) -> None:
        while not stopped():
            time.sleep(0.001)
        ended.append("stopped")
        raise RuntimeError("dropped")

    BackgroundWork(work).stop()
    assert ended == ["stopped"]


class NotedEngine(ShownEngine):
    """Tells which thread steps it, and what that thread was told of its device before."""

    def __init__(self, conversation: Conversation, devices: dict[int, torch.device]) -> None:
        super().__init__(conversation)
        self.devices = devices
        self.steps: dict[int, torch.device | None] = {}

    def step(self) -> list[Generation]:
        thread = threading.get_ident()
        self.steps.setdefault(thread, self.devices.get(thread))
        return super().step()


def test_the_engines_thread_computes_on_the_device_of_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 3 of a machine, which collects an epoch ahead: a thread begins with GPU 0."""
    devices: dict[int, torch.device] = {}

    def set_device(device: torch.device) -> None:
        devices[threading.get_ident()] = device

    monkeypatch.setattr(datamodule, "use_device", set_device)
    tokenizer, gpu = make_tokenizer("tags"), torch.device("cuda", 3)
    settings = ["rollout.overlap=true", "rollout.tasks_per_epoch=1", "rollout.group_size=2"]
    config = compose("train", [*settings, "callbacks.progress_bars=false"])
    module = RolloutDataModule(config, "unused", tokenizer, task_sets())
    engine: Any = NotedEngine(module.conversation, devices)
    module._engine = engine
    module.trainer = SimpleNamespace(  # type: ignore[assignment]
        current_epoch=0,
        max_epochs=2,
        global_rank=0,
        world_size=1,
        strategy=SimpleNamespace(root_device=gpu),
        lightning_module=SimpleNamespace(
            weights=lambda: iter(()), shares_prompts=False, packs_rows=False
        ),
    )
    module.train_dataloader()
    assert module._ahead is not None
    assert {one.epoch for one in module._ahead.result()} == {1}
    here = threading.get_ident()
    assert list(engine.steps) == [here, *devices]  # the first epoch's here, the next one's there
    assert engine.steps == {here: None, **dict.fromkeys(devices, gpu)}
    assert len(devices) == 1
