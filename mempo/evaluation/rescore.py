"""Stored trajectories judged anew by another reward (``mempo rescore``): no engine, no model.

What was stored stays as it is: the new table stands beside it, in files of its own.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from mempo.config import RewardConfig
from mempo.judging.judging import Judging
from mempo.judging.names import added_metrics
from mempo.records.trajectory_lines import TrajectoryLine
from mempo.runtime.run_files import write_json
from mempo.trajectory import Objective, Task, Trajectory

STEM: Final = "rescored"

_AT_ONCE: Final = 4  # for each worker: enough to keep it busy
_FIRST: Final = ("model", "context", "epoch", "task", "sample", "answer", "format_valid")


@dataclass(frozen=True)
class Rescored:
    """A stored trajectory and what it is worth now."""

    line: TrajectoryLine
    metrics: dict[str, float]
    reward: float

    @property
    def changed(self) -> bool:
        return self.line.reward is None or abs(self.reward - self.line.reward) > 1e-9


def rescore(
    lines: Sequence[TrajectoryLine],
    config: RewardConfig,
    cache_dir: str,
    advance: Callable[[int], None] = lambda steps: None,
) -> list[Rescored]:
    """The trajectories by the reward of ``config``, in their order. ``advance`` is told how many
    more are done. Raises what ``Judging`` raises."""
    found: dict[int, Rescored] = {}

    def keep(finished: Iterable[tuple[str, Trajectory]]) -> None:
        for key, one in finished:
            assert one.reward is not None
            found[int(key)] = Rescored(lines[int(key)], one.metrics, one.reward)
            advance(1)

    with Judging(config, cache_dir) as judging:
        for number, line in enumerate(lines):
            judging.begin(str(number), _trajectory(line))
            keep(judging.take())
            while judging.pending >= _AT_ONCE * config.workers:
                keep(judging.take(wait_seconds=1.0))
        while judging.pending:
            keep(judging.take(wait_seconds=1.0))
        judging.check()
    return [found[number] for number in range(len(lines))]


def _trajectory(line: TrajectoryLine) -> Trajectory:
    """As far as a reward looks at it."""
    return Trajectory(
        stored_task(line),
        line.epoch,
        line.sample,
        prompt_length=0,
        answer=line.answer,
        format_valid=line.format_valid,
    )


def stored_task(line: TrajectoryLine) -> Task:
    """The task of a line. A line holds the questions joined with ``"; "``: where they cannot be
    told apart, because one holds such a joint itself, each objective gets all of them."""
    questions = line.question.split("; ")
    if len(questions) != len(line.golds):
        questions = [line.question] * len(line.golds)
    objectives = tuple(
        Objective(question, tuple(golds))
        for question, golds in zip(questions, line.golds, strict=True)
    )
    return Task(line.task, objectives, line.source, metadata=line.metadata)


def groups(rescored: Iterable[Rescored]) -> dict[str, list[Rescored]]:
    """By model and context of an evaluation, by epoch of a training run."""
    found: dict[str, list[Rescored]] = {}
    for one in rescored:
        line = one.line
        name = f"{line.model}/{line.context}" if line.model else f"epoch {line.epoch + 1}"
        found.setdefault(name, []).append(one)
    return found


def group_figures(rescored: Sequence[Rescored]) -> dict[str, float]:
    """Means over trajectories: the stored reward (``reward_before``, over those that have one), the
    new one, and every metric over those that have it; ``changed`` counts other rewards."""
    before = [one.line.reward for one in rescored if one.line.reward is not None]
    figures = {"trajectories": float(len(rescored))}
    if before:
        figures["reward_before"] = sum(before) / len(before)
    figures["reward"] = sum(one.reward for one in rescored) / len(rescored)
    figures["changed"] = float(sum(one.changed for one in rescored))
    for name in _metric_names(rescored):
        values = [one.metrics[name] for one in rescored if name in one.metrics]
        figures[name] = sum(values) / len(values)
    return figures


def write_rescored(
    folder: Path, source: Path, rescored: Sequence[Rescored], config: RewardConfig
) -> tuple[Path, Path]:
    """Writes a CSV with a row for each trajectory and a JSON with the figures of each group and the
    reward that was used; both under names that nothing in ``folder`` has."""
    table, summary = _free_names(folder)
    names = _metric_names(rescored)
    with table.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*_FIRST, "reward_before", "reward", *names))
        for one in rescored:
            first = (_plain(getattr(one.line, name)) for name in _FIRST)
            before = _plain(one.line.reward)
            writer.writerow(
                (*first, before, one.reward, *(one.metrics.get(name, "") for name in names))
            )
    figures = {name: group_figures(part) for name, part in groups(rescored).items()}
    write_json(summary, {"source": source.name, "reward": _recorded(config), "groups": figures})
    return table, summary


def rescored_table(rescored: Sequence[Rescored]) -> Table:
    """One line per group and, of a training run, one for all of them."""
    parts = groups(rescored)
    if len(parts) > 1 and not any(one.line.model for one in rescored):
        parts["all"] = list(rescored)
    names = [name for name in _metric_names(rescored) if not name.endswith(("_sum", "_parts"))]
    table = Table(title="Trajectories judged anew")
    table.add_column("")
    for title in ("trajectories", "reward before", "reward now", "changed", *names):
        table.add_column(title, justify="right")
    for name, part in parts.items():
        figures = group_figures(part)
        cells = (
            f"{figures[key]:{form}}" if key in figures else "–"
            for key, form in (
                ("trajectories", ".0f"),
                ("reward_before", ".3f"),
                ("reward", ".3f"),
                ("changed", ".0f"),
                *((key, ".3f") for key in names),
            )
        )
        table.add_row(name, *cells)
    return table


def _metric_names(rescored: Iterable[Rescored]) -> list[str]:
    found = dict.fromkeys(name for one in rescored for name in one.metrics)
    added = added_metrics(found)
    return [*(name for name in found if name not in added), *added]


def _free_names(folder: Path) -> tuple[Path, Path]:
    """``rescored.csv`` and ``rescored.json``, or the first of ``rescored-2`` … of which neither is
    there."""
    for number in itertools.count(1):
        name = STEM if number == 1 else f"{STEM}-{number}"
        paths = folder / f"{name}.csv", folder / f"{name}.json"
        if not any(path.exists() for path in paths):
            return paths
    raise AssertionError("numbers do not end")


def _recorded(config: RewardConfig) -> dict[str, Any]:
    found = dataclasses.asdict(config)
    if not config.judged:
        del found["judge"]
    return found


def _plain(value: Any) -> Any:
    return "" if value is None else value
