"""Histograms by round of the memory reward and the two probabilities behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import lightning.pytorch as pl
import numpy as np

from mempo.records.epoch_metrics import P_FULL, P_MEM, REWARD, scored_values
from mempo.runtime.gather import gather_to_main
from mempo.training.interface import epoch_source
from mempo.training.loggers import log_to_wandb, wandb_loggers
from mempo.trajectory import Trajectory

BINS: Final = 40
RANGES: Final = {REWARD: (-1.0, 1.0), P_MEM: (0.0, 1.0), P_FULL: (0.0, 1.0)}
"""The same edges in every epoch, so that wandb's picture over time compares like with like."""

LOG_REWARD: Final = (-10.0, 10.0)
"""Memory rewards in nats (``scoring.reward=log_probability``) have no bounds; what lies beyond
these stands in the outermost bins."""


class MemoryDistributionsCallback(pl.Callback):
    """Logs ``{memory_reward,p_mem,p_full}_histograms/round_<k>`` to wandb, online or offline.

    Does nothing without a ``WandbLogger``. The quantiles of the same values are part of the epoch's
    record (``mempo/records/epoch_metrics.py``).
    """

    def __init__(self, log_every_epochs: int = 1, in_nats: bool = False) -> None:
        self.log_every_epochs = log_every_epochs
        self.in_nats = in_nats

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the values on rank 0, which logs them."""
        if (trainer.current_epoch + 1) % self.log_every_epochs:
            return
        parts = gather_to_main(values_by_round(epoch_source(trainer).trajectories))
        if parts is not None and wandb_loggers(trainer):
            log_to_wandb(trainer, histograms(parts, self.in_nats))


def values_by_round(trajectories: Iterable[Trajectory]) -> dict[tuple[str, int], list[float]]:
    """The values of all scored rounds, by quantity and round number."""
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for one in trajectory.scored_rounds():
            for quantity, value in scored_values(one):
                values[quantity, one.number].append(value)
    return dict(values)


def histograms(
    parts: Iterable[Mapping[tuple[str, int], list[float]]], in_nats: bool = False
) -> dict[str, object]:
    """A ``wandb.Histogram`` over the values of all processes for each key. ``in_nats``: memory
    rewards are differences of log P."""
    import wandb  # only where it is used: importing it takes a second

    ranges = RANGES | {REWARD: LOG_REWARD} if in_nats else RANGES
    merged: dict[tuple[str, int], list[float]] = defaultdict(list)
    for part in parts:
        for key, values in part.items():
            merged[key].extend(values)
    return {
        f"{quantity}_histograms/round_{number}": wandb.Histogram(
            np_histogram=np.histogram(
                np.clip(values, *ranges[quantity]), bins=BINS, range=ranges[quantity]
            )
        )
        for (quantity, number), values in sorted(merged.items())
    }
