"""The numbers of ``metrics.jsonl`` for wandb and every other logger."""

from __future__ import annotations

import lightning.pytorch as pl

from mempo.training.interface import epoch_record


class MetricsLoggersCallback(pl.Callback):
    """Hands the epoch's record to the trainer's loggers every ``log_every_epochs`` epochs.

    With ``trainer/global_step`` among the numbers and without ``step``: wandb drops entries whose
    step is smaller than one it has seen.
    """

    def __init__(self, log_every_epochs: int = 1) -> None:
        self.log_every_epochs = log_every_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Logs on rank 0."""
        if not trainer.is_global_zero or (trainer.current_epoch + 1) % self.log_every_epochs:
            return
        for logger in trainer.loggers:
            logger.log_metrics(dict(epoch_record(trainer)))
