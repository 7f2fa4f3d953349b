"""Progress of the supervised stage: a bar, and the loss of the first and of every hundredth
step."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl

from mempo.runtime.progress import ProgressBar, progress_bar
from mempo.training.supervised import SftBatch

_PRINT_EVERY = 100


class SupervisedProgressCallback(pl.Callback):
    """Counts optimizer steps on rank 0."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._stack = ExitStack()
        self._bar: ProgressBar | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._bar = self._stack.enter_context(
            progress_bar("supervised start", self.steps, enabled=trainer.is_global_zero)
        )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: SftBatch,
        batch_idx: int,
    ) -> None:
        if self._bar is not None:
            self._bar.advance(int(batch.last_of_step), int(batch.attention_mask.sum()))
        step = trainer.global_step
        due = step % _PRINT_EVERY == 0 or step in (1, self.steps)
        if batch.last_of_step and due and trainer.is_global_zero:
            loss = float(trainer.callback_metrics["sft/loss"])
            print(f"supervised step {step}/{self.steps} | loss {loss:.3f}", flush=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stack.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._stack.close()
