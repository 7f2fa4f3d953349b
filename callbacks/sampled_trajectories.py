"""A table of a few trajectories with what they wrote and what it was worth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import lightning.pytorch as pl

from mempo.records.trajectory_records import record_order, trajectory_record
from mempo.runtime.gather import gather_to_main
from mempo.runtime.seeds import derive_seed
from mempo.training.interface import epoch_source
from mempo.training.loggers import log_to_wandb, wandb_loggers

KEY: Final = "samples/trajectories"
OF_TRAJECTORY: Final = (
    "epoch",
    "task",
    "sample",
    "question",
    "gold",
    "answer",
    "ending",
    "reward",
    "outcome_advantage",
)
OF_ROUND: Final = (
    "number",
    "mem",
    "action",
    "argument",
    "p_full",
    "p_mem",
    "memory_reward",
    "memory_advantage",
    "memory_tokens",
)
COLUMNS: Final = (*OF_TRAJECTORY, *OF_ROUND)


class SampledTrajectoriesCallback(pl.Callback):
    """Logs ``samples/trajectories`` to wandb: one line for each round of ``count`` trajectories.

    They are drawn from the epoch's with a seed of their own, so that two runs with one seed show
    the same tasks and samples. Does nothing without a ``WandbLogger``. ``trajectories.jsonl`` has
    all of them.
    """

    def __init__(self, count: int, seed: int, log_every_epochs: int = 1) -> None:
        self.count = count
        self.seed = seed
        self.log_every_epochs = log_every_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers each process's share on rank 0, which draws from them and logs the table."""
        if (trainer.current_epoch + 1) % self.log_every_epochs:
            return
        seed = (self.seed, "samples", trainer.current_epoch)
        own = draw(
            [trajectory_record(one) for one in epoch_source(trainer).trajectories],
            self.count,
            derive_seed(*seed, trainer.global_rank),
        )
        parts = gather_to_main(own)
        if parts is None or not wandb_loggers(trainer):
            return
        import wandb  # only where it is used: importing it takes a second

        chosen = draw([one for part in parts for one in part], self.count, derive_seed(*seed))
        rows = table_rows(sorted(chosen, key=record_order))
        log_to_wandb(trainer, {KEY: wandb.Table(columns=list(COLUMNS), data=rows)})


def draw(records: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` of the records, or all where there are fewer."""
    ordered = sorted(records, key=record_order)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def table_rows(records: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """One row for each round, in the order of ``COLUMNS``. Epochs count from 1, as the terminal
    does; several golds of an objective stand behind one another, with " / " between them."""
    return [
        [
            one["epoch"] + 1,
            one["task"],
            one["sample"],
            one["question"],
            "; ".join(" / ".join(aliases) for aliases in one["golds"]),
            *(one[name] for name in OF_TRAJECTORY[5:]),
            *(round_[name] for name in OF_ROUND),
        ]
        for one in records
        for round_ in one["rounds"]
    ]
