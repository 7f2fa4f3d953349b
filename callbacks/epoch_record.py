"""The epoch's numbers, gathered over all processes once for every callback that reads them."""

from __future__ import annotations

import lightning.pytorch as pl

from mempo.records.epoch_record import gather_epoch_record
from mempo.training.interface import rollout_source, trained_policy


class EpochRecordCallback(pl.Callback):
    """Leaves the epoch's record where ``mempo.training.interface.epoch_record`` finds it, for the
    callbacks behind this one."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Every rank takes part."""
        source, policy = rollout_source(trainer), trained_policy(pl_module)
        source.record = gather_epoch_record(
            trainer.current_epoch,
            trainer.global_step,
            source.trajectories,
            policy.epoch_metrics,
            source.staleness,
            (source.phases, policy.phases),
            source.tasks.sources,
        )
