"""Histograms by round of the memory reward and the two probabilities behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import lightning.pytorch as pl
from lightning.pytorch.loggers import WandbLogger

from mempo.epoch_record import epoch_source
from mempo.gather import gather_to_main
from mempo.trajectory import Trajectory


class MemoryDistributionsCallback(pl.Callback):
    """Logs ``memory_distributions/{reward,p_mem,p_full}_round_<k>`` to wandb, online or offline.

    Does nothing without a ``WandbLogger``.
    """

    def __init__(self, log_every_epochs: int = 1) -> None:
        self.log_every_epochs = log_every_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the values on rank 0, which logs them."""
        if (trainer.current_epoch + 1) % self.log_every_epochs:
            return
        parts = gather_to_main(values_by_round(epoch_source(trainer).trajectories))
        loggers = [one for one in trainer.loggers if isinstance(one, WandbLogger)]
        if parts is None or not loggers:
            return
        merged: dict[str, list[float]] = defaultdict(list)
        for part in parts:
            for key, values in part.items():
                merged[key].extend(values)
        if merged:
            _log(loggers, merged, trainer)


def values_by_round(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """The values of all scored rounds, by quantity and round number."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for one in trajectory.scored_rounds():
            for name, value in (
                ("reward", one.memory_reward),
                ("p_mem", one.p_mem),
                ("p_full", one.p_full),
            ):
                if value is not None:
                    values[f"memory_distributions/{name}_round_{one.number}"].append(value)
    return dict(values)


def _log(loggers: list[WandbLogger], values: dict[str, list[float]], trainer: pl.Trainer) -> None:
    import wandb  # only where it is used: importing it takes a second

    entry: dict[str, object] = {
        "epoch": trainer.current_epoch,
        "trainer/global_step": trainer.global_step,
    }
    for key in sorted(values):
        entry[key] = wandb.Histogram(values[key])
    for logger in loggers:
        logger.experiment.log(entry)
