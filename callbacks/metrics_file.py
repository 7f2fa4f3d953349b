"""One JSON line per epoch."""

from __future__ import annotations

import math
from pathlib import Path

import lightning.pytorch as pl

from mempo.runtime.run_files import append_lines, drop_from_epoch
from mempo.runtime.run_folder import METRICS_FILE
from mempo.training.interface import epoch_record


class MetricsFileCallback(pl.Callback):
    """Appends the epoch's record to ``<run_dir>/metrics.jsonl``."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / METRICS_FILE

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drops lines of epochs that a resumed run does again."""
        if trainer.is_global_zero:
            drop_from_epoch(self.path, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the epoch's line on rank 0. Raises ``FloatingPointError`` that names the metric
        for NaN and infinity, on every rank."""
        record = epoch_record(trainer)
        for key, value in record.items():
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"epoch {trainer.current_epoch}: {key} is {value}; the run stops, since every "
                    "later number would rest on it"
                )
        if trainer.is_global_zero:
            append_lines(self.path, [record])
