"""When a run builds its engine, lets it sleep and wakes it (specification section 10)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import lightning as L
import lightning.pytorch as pl
import pytest
from torch import Tensor

from callbacks.build import run_callbacks
from mempo.agent.conversation import Conversation
from mempo.command.cli import compose
from mempo.engine.interface import Sampling
from mempo.models.loading import load_tokenizer
from mempo.training import datamodule
from mempo.training.run import reinforce
from tests.support.uneven_cases import CASES, ShownEngine, overrides, task_sets, write_start

PLAIN = {
    "processes": "ddp",
    "context": "full",
    "scoring": "padded",
    "updates": "1",
    "tasks": "3",
    "adapter": "none",
    "kl": "0",
    "checkpointing": "false",
}


class NotedEngine(ShownEngine):
    """Notes what is asked of it."""

    def __init__(self, conversation: Conversation, events: list[str]) -> None:
        super().__init__(conversation)
        self.events = events
        events.append("build")

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        self.events.append("sample")
        super().submit(key, prompt_ids, max_tokens, seed, sampling)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.events.append("sync")
        super().sync(weights)

    def sleep(self) -> None:
        self.events.append("sleep")

    def close(self) -> None:
        self.events.append("close")


class NotedTraining(pl.Callback):
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        states = sum(len(one.state) for one in trainer.optimizers)
        self.events.append(f"optimizer, {states} states")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.events.append("scored")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        states = sum(len(one.state) for one in trainer.optimizers)
        self.events.append("updated" if states else "not updated")


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_the_engine_is_built_first_and_sleeps_while_the_trainer_works(
    overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_start(tmp_path / "start", tied=True)
    conversation = Conversation(load_tokenizer(str(tmp_path / "start")), "Answer.")
    events: list[str] = []

    def build(*_: Any) -> NotedEngine:
        return NotedEngine(conversation, events)

    monkeypatch.setattr(datamodule, "Engine", build)
    case = {**CASES[0], **PLAIN, "overlap": overlap}
    config = compose("train", overrides(case, alone=True), run_dir=str(tmp_path / "run"))
    L.seed_everything(config.seed, verbose=False)
    callbacks = [*run_callbacks(config), NotedTraining(events)]
    reinforce(config, str(tmp_path / "start"), task_sets(), callbacks)
    evaluation = ["sync", "sample"]
    if overlap == "true":  # what is sampled ahead comes among the rest, and nothing after the last
        assert events[0] == "build"
        last = events[events.index("sleep") :]
        assert [event for event, _ in groupby(last)] == [
            *("sleep", "scored", "updated", *evaluation, "close")
        ]
        return
    epoch = ["sync", "sample", "sleep", "scored", "updated"]
    assert [event for event, _ in groupby(events)] == [
        *("build", "sleep", "optimizer, 0 states"),
        *(*evaluation, *epoch, *epoch, *evaluation, "close"),
    ]
