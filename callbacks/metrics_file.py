"""One JSON line per epoch, and the same numbers to the loggers."""

from __future__ import annotations

import math
from pathlib import Path

import lightning.pytorch as pl

from mempo.records.epoch_record import epoch_record
from mempo.runtime.run_files import append_lines, drop_from_epoch


class MetricsFileCallback(pl.Callback):
    """Appends the epoch's metrics to ``<run_dir>/metrics.jsonl`` and hands them to the loggers.

    Loggers get them every ``log_every_epochs`` epochs, with ``trainer/global_step`` among them and
    without ``step``: wandb drops entries whose step is smaller than one it has seen.
    """

    def __init__(self, run_dir: str | Path, log_every_epochs: int = 1) -> None:
        self.path = Path(run_dir) / "metrics.jsonl"
        self.log_every_epochs = log_every_epochs

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drops lines of epochs that a resumed run does again."""
        if trainer.is_global_zero:
            drop_from_epoch(self.path, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the epoch's line. Raises ``FloatingPointError`` that names the metric for NaN and
        infinity."""
        record = epoch_record(trainer, pl_module)
        for key, value in record.items():
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"epoch {trainer.current_epoch}: {key} is {value}; the run stops, since every "
                    "later number would rest on it"
                )
        if not trainer.is_global_zero:
            return
        append_lines(self.path, [record])
        if (trainer.current_epoch + 1) % self.log_every_epochs == 0:
            for logger in trainer.loggers:
                logger.log_metrics(dict(record))
