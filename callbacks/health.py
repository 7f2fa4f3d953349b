"""A sentence when a run looks ill."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from mempo.config import HealthConfig
from mempo.records.health import findings
from mempo.records.run_results import read_metrics
from mempo.runtime.run_folder import METRICS_FILE
from mempo.training.interface import epoch_record


class HealthCallback(pl.Callback):
    """Runs the checks of ``mempo/records/health.py`` after each epoch and prints each finding once.

    A resumed run looks at the epochs of ``<run_dir>/metrics.jsonl`` too, and says again what is
    still so.
    """

    def __init__(self, settings: HealthConfig, run_dir: str | Path) -> None:
        self.settings = settings
        self.path = Path(run_dir) / METRICS_FILE
        self._records: list[dict[str, float]] = []
        self._said: set[str] = set()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reads the epochs before the one that comes next."""
        if trainer.is_global_zero and self.path.exists():
            lines = read_metrics(self.path)
            self._records = [line for line in lines if line["epoch"] < trainer.current_epoch]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prints on rank 0 what is new."""
        if not trainer.is_global_zero:
            return
        self._records.append(epoch_record(trainer))
        for name, sentence in findings(self._records, self.settings).items():
            if name not in self._said:
                self._said.add(name)
                print(f"health, epoch {trainer.current_epoch + 1}: {sentence}", flush=True)
