"""Run folders as curves: which runs belong together, and what they are called."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mempo.records.run_config import read_config
from mempo.records.run_results import read_evaluation, read_metrics
from mempo.records.smoothing import running_mean_by_epoch
from mempo.runtime.errors import MempoError
from mempo.runtime.nested import leaves
from mempo.runtime.run_folder import CONFIG_FILE, EVALUATION_FILE, METRICS_FILE

IGNORED: Final = (
    "algorithm",
    "seed",
    "run_dir",
    "cache_dir",
    "ckpt_path",
    "dry_run",
    "logger",
    "callbacks",
)
"""Settings that do not make a run another experiment, or that its name says already."""

Points = dict[int, float]
"""Values by epoch, counted from 1."""


@dataclass(frozen=True)
class PlotRun:
    """One run folder. ``settings`` are the leaves of its configuration, empty without one."""

    folder: Path
    records: list[dict[str, float]]
    evaluation: dict[str, Any]
    settings: dict[str, Any]

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, or the folder's without a configuration."""
        return str(self.settings.get("algorithm.name") or self.folder.resolve().name)

    def points(self, key: str) -> Points:
        """The metric's values in the epochs that have one."""
        return {int(one["epoch"]) + 1: one[key] for one in self.records if key in one}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: tuple[PlotRun, ...]

    def band(self, key: str, window: int = 1) -> Band:
        """The metric over the runs, in the epochs that every one of them has; with ``window``
        above 1 each run's running mean over that many epochs."""
        curves = [running_mean_by_epoch(run.points(key), window) for run in self.runs]
        epochs = sorted(set.intersection(*map(set, curves)))
        by_epoch = [[curve[epoch] for curve in curves] for epoch in epochs]
        return Band(
            epochs,
            [sum(values) / len(values) for values in by_epoch],
            [min(values) for values in by_epoch],
            [max(values) for values in by_epoch],
        )

    def rounds(self, prefix: str) -> list[int]:
        """The round numbers of the metrics ``<prefix>/round_<k>`` that any of the runs logged."""
        start = f"{prefix}/round_"
        keys = {key for run in self.runs for one in run.records for key in one}
        rounds = [key.removeprefix(start) for key in keys if key.startswith(start)]
        return sorted(int(one) for one in rounds if re.fullmatch("[0-9]{1,9}", one))


@dataclass(frozen=True)
class Band:
    """Mean, least and largest value of several runs by epoch."""

    epochs: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


def read_plot_run(folder: Path) -> PlotRun:
    """Reads a run folder. Raises ``MempoError`` when it holds no metrics."""
    path = folder / METRICS_FILE
    if not path.is_file():
        raise MempoError(f"{path}: no such file; name a folder that train.py wrote")
    records = read_metrics(path)
    if not records:
        raise MempoError(f"{path} is empty: no epoch of that run has ended")
    return PlotRun(
        folder,
        records,
        read_evaluation(folder / EVALUATION_FILE),
        leaves(read_config(folder / CONFIG_FILE)),
    )


def group_runs(runs: Sequence[PlotRun]) -> list[Group]:
    """Puts runs together whose settings are alike but for ``IGNORED``, in the order in which they
    were named.

    A group is called after its algorithm and, where other groups have the same one, the settings
    in which they differ. Runs with one seed are no sample over seeds: each is a group of its own,
    with its folder's name behind the label. So is a run whose folder has no configuration.
    """
    alike: dict[str, list[PlotRun]] = defaultdict(list)
    for run in runs:
        own = str(run.folder.resolve()) if not run.settings else ""
        alike[json.dumps([own, run.algorithm, _experiment(run)], sort_keys=True)].append(run)
    groups: list[Group] = []
    for members in alike.values():
        label = _label(members[0], runs)
        seeds = [run.settings.get("seed") for run in members]
        if len(set(seeds)) == len(seeds):
            groups.append(Group(label, tuple(members)))
        else:
            names = [run.folder.resolve().name for run in members]
            groups += [
                Group(f"{label} ({name})", (run,)) for name, run in zip(names, members, strict=True)
            ]
    return groups


def _label(run: PlotRun, runs: Sequence[PlotRun]) -> str:
    same = [_experiment(one) for one in runs if one.algorithm == run.algorithm]
    own = _experiment(run)
    differing = [name for name in own if any(one.get(name) != own[name] for one in same)]
    shown = [f"{name}={own[name]}" for name in differing[:2]]
    return ", ".join([run.algorithm, *shown, *(["…"] if len(differing) > 2 else [])])


def _experiment(run: PlotRun) -> dict[str, Any]:
    return {
        name: value for name, value in run.settings.items() if name.split(".")[0] not in IGNORED
    }
