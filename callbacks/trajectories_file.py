"""One JSON line per trajectory of each epoch."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from mempo.records.trajectory_records import record_order, trajectory_record
from mempo.runtime.gather import gather_to_main
from mempo.runtime.run_files import append_lines, drop_from_epoch
from mempo.runtime.run_folder import TRAJECTORIES_FILE
from mempo.training.interface import epoch_source


class TrajectoriesFileCallback(pl.Callback):
    """Appends every process's trajectories to ``<run_dir>/trajectories.jsonl``, in an order that
    does not depend on the number of processes: by task, then by sample."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / TRAJECTORIES_FILE

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drops lines of epochs that a resumed run does again."""
        if trainer.is_global_zero:
            drop_from_epoch(self.path, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the trajectories on rank 0, which writes them."""
        parts = gather_to_main([trajectory_record(t) for t in epoch_source(trainer).trajectories])
        if parts is not None:
            records = [record for part in parts for record in part]
            append_lines(self.path, sorted(records, key=record_order))
