"""A sentence when engine and trainer disagree more than their precision explains."""

from __future__ import annotations

import lightning.pytorch as pl

from mempo.config import Config
from mempo.training.interface import trained_policy

EXPECTED = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest mean difference of log-probabilities, in nats, that each precision explains."""


class MismatchWarningCallback(pl.Callback):
    """Compares the epoch's ``engine/mismatch_mean`` with what the dtypes of engine and policy
    allow. Says it once; the number itself is logged every epoch."""

    def __init__(self, config: Config) -> None:
        engine = config.engine.dtype if config.engine.dtype != "auto" else config.model.dtype
        self.dtype = "bfloat16" if "bfloat16" in (engine, config.model.dtype) else "float32"
        self._said = False

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prints the sentence on rank 0."""
        mismatch = trained_policy(pl_module).epoch_metrics.get("engine/mismatch_mean")
        if mismatch is None or mismatch <= EXPECTED[self.dtype] or self._said:
            return
        self._said = True
        if trainer.is_global_zero:
            print(
                f"warning: in epoch {trainer.current_epoch + 1} the engine's and the trainer's "
                f"log-probabilities of the sampled tokens differ by {mismatch:.2g} on average; "
                f"{self.dtype} explains up to {EXPECTED[self.dtype]:g}. Either the weights did not "
                "reach the engine or the two compute differently: compare engine.dtype with "
                "model.dtype, or set loss.importance_cap=2 to correct for it",
                flush=True,
            )
