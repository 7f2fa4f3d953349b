"""What an epoch left behind, as the callbacks read it."""

from __future__ import annotations

from typing import Any, Protocol, cast

import lightning.pytorch as pl

from mempo.records.epoch_metrics import epoch_metrics
from mempo.runtime.gather import gather_objects
from mempo.runtime.phases import Phases
from mempo.trajectory import Trajectory


class EpochSource(Protocol):
    """What callbacks read from the data module: this process's trajectories of the epoch, what its
    phases took (``sync``, ``rollout``, ``scoring``), and how many epochs older than the policy the
    weights were that sampled."""

    trajectories: list[Trajectory]
    phases: Phases
    staleness: int


def epoch_source(trainer: pl.Trainer) -> EpochSource:
    """The trainer's data module, as callbacks see it."""
    return cast(EpochSource, cast(Any, trainer).datamodule)


def epoch_record(trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, float]:
    """Every metric of the epoch over all processes, the same on each; all of them must call it.

    The trajectories' metrics, the module's ``epoch_metrics`` (already reduced), ``seconds/<phase>``
    of the slowest process, ``peak_gib/<phase>`` of the fullest, ``trainer/global_step`` and
    ``epoch``.
    """
    source = epoch_source(trainer)
    record: dict[str, float] = {"epoch": trainer.current_epoch}
    record.update(epoch_metrics(source.trajectories))
    record.update(cast(Any, pl_module).epoch_metrics)
    record["engine/staleness"] = float(source.staleness)
    own: dict[str, float] = {}
    for phases in (source.phases, cast(Any, pl_module).phases):
        own |= {f"seconds/{name}": value for name, value in phases.seconds.items()}
        own |= {f"peak_gib/{name}": value for name, value in phases.peak_gib.items()}
    for part in gather_objects(own):
        for key, value in part.items():
            record[key] = max(value, record.get(key, 0.0))
    record["trainer/global_step"] = trainer.global_step
    return record
