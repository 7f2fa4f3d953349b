"""The record of an epoch: one line of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mempo.records.epoch_metrics import MetricSums, collect
from mempo.runtime.gather import gather_objects
from mempo.runtime.phases import Phases
from mempo.trajectory import Trajectory


def gather_epoch_record(
    epoch: int,
    global_step: int,
    trajectories: Iterable[Trajectory],
    update_metrics: Mapping[str, float],
    staleness: int,
    phases: Iterable[Phases],
    sources: Sequence[str] = (),
) -> dict[str, float]:
    """Every metric of the epoch over all processes, the same on each; all of them must call it.

    The metrics of every process's ``trajectories``, also by the ``sources`` that are named, the
    ``update_metrics`` (already reduced), ``seconds/<phase>`` of the slowest process,
    ``peak_gib/<phase>`` of the fullest, ``engine/staleness``, ``trainer/global_step`` and
    ``epoch``. Raises as ``collect``.
    """
    own: dict[str, float] = {}
    for one in phases:
        own |= {f"seconds/{name}": value for name, value in one.seconds.items()}
        own |= {f"peak_gib/{name}": value for name, value in one.peak_gib.items()}
    sums, largest = MetricSums(), dict[str, float]()
    for part, measured in gather_objects((collect(trajectories, sources), own)):
        sums.merge(part)
        for key, value in measured.items():
            largest[key] = max(value, largest.get(key, 0.0))
    return {
        "epoch": epoch,
        **sums.result(),
        **update_metrics,
        "engine/staleness": float(staleness),
        **largest,
        "trainer/global_step": global_step,
    }
