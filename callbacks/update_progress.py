"""A progress bar for the micro-batches of an epoch's updates."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl

from mempo.learning.batches import Batch
from mempo.runtime.progress import ProgressBar, progress_bar


class UpdateProgressCallback(pl.Callback):
    """Shows micro-batches done and tokens per second on rank 0."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar: ProgressBar | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        total = int(trainer.num_training_batches)
        shown = trainer.is_global_zero
        self._bar = self._stack.enter_context(
            progress_bar(f"update {trainer.current_epoch}", total, enabled=shown)
        )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        if self._bar is not None:
            self._bar.advance(1, int(batch.attention_mask.sum()))
        if trainer.is_last_batch:
            self._stack.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._stack.close()
