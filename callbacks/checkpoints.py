"""Checkpoints at epoch ends."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint

from mempo.runtime.checkpoint_files import checkpoint_path, drop_later, keep_newest
from mempo.training.interface import rollout_source


class CheckpointsCallback(Checkpoint):
    """Saves at the end of every ``every``-th epoch and of the last; the newest ``keep_last`` stay.

    At epoch ends only: Lightning skips ``on_train_epoch_start``, and with it the scoring, when a
    run goes on from within an epoch. Its base class makes Lightning call it after the callbacks
    that write the epoch's files, so a checkpoint's epoch is always complete in them.
    """

    def __init__(self, run_dir: str, every: int, keep_last: int) -> None:
        self.run_dir = run_dir
        self.every = every
        self.keep_last = keep_last

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves to the moment when a checkpoint has been read what a kill left undone behind the
        last one, and the ones that are written again: before the epoch's files lose their lines, or
        a kill in between would leave a checkpoint of epochs that have none."""
        if trainer.is_global_zero:
            rollout_source(trainer).before_collecting.append(lambda: self._tidy(trainer))

    def _tidy(self, trainer: pl.Trainer) -> None:
        drop_later(self.run_dir, rollout_source(trainer).next_epoch)
        keep_newest(self.run_dir, self.keep_last)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Every rank takes part in saving; rank 0 removes the old ones."""
        finished = trainer.current_epoch + 1
        if finished % self.every and finished != trainer.max_epochs:
            return
        trainer.save_checkpoint(checkpoint_path(self.run_dir, trainer.current_epoch))
        if trainer.is_global_zero:
            keep_newest(self.run_dir, self.keep_last)
