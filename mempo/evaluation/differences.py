"""Paired differences between models and context modes, on the same tasks (section 9).

Two evaluations of one task set share what is hard about each task, so the difference by task says
more than two intervals side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from mempo.config.reward import JUDGE
from mempo.evaluation.evaluate import PERCENT, bootstrap_interval, percent_metrics

Name = tuple[str, str]
"""A model and a context mode."""

Summaries = Mapping[Name, Sequence[Mapping[str, Any]]]
"""The tasks' summaries (``mempo.evaluation.evaluate.summary``) of each model and context mode."""

METRICS: Final = ("exact_match", "f1", "f1_set", "answered", "rounds", "total_tokens")


@dataclass(frozen=True)
class Difference:
    """``value``: the mean over tasks of ``second`` minus ``first``, with its 95 % bootstrap
    interval over tasks (``None`` without resamples). ``objectives`` is ``None`` over tasks of
    several numbers of objectives. Answer metrics are × 100."""

    first: Name
    second: Name
    objectives: int | None
    metric: str
    tasks: int
    value: float
    interval: tuple[float, float] | None


def compared_pairs(names: Sequence[Name]) -> list[tuple[Name, Name]]:
    """Pairs that differ in one thing: the context modes of one model, and models in one mode. The
    one that was named earlier comes first."""
    return [
        (first, second)
        for first, second in combinations(names, 2)
        if (first[0] == second[0]) != (first[1] == second[1])
    ]


def paired_differences(summaries: Summaries, samples: int, seed: int) -> list[Difference]:
    """Every metric of ``METRICS`` for each compared pair and number of objectives, and over all
    tasks where there are several numbers. Raises ``ValueError`` when two did not get the same
    tasks."""
    return [
        _difference(pair, rows, count, metric, samples, seed)
        for pair in compared_pairs(list(summaries))
        for count, rows in _parts(_paired(pair, summaries))
        for metric in _metrics(rows)
    ]


_Rows = list[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _paired(pair: tuple[Name, Name], summaries: Summaries) -> _Rows:
    first, second = (
        {(row["objectives"], row["task"]): row for row in summaries[name]} for name in pair
    )
    if first.keys() != second.keys():
        raise ValueError(f"{pair[0]} and {pair[1]} did not get the same tasks")
    return [(row, second[key]) for key, row in first.items()]


def _parts(rows: _Rows) -> list[tuple[int | None, _Rows]]:
    counts = sorted({first["objectives"] for first, _ in rows})
    parts: list[tuple[int | None, _Rows]] = [
        (count, [row for row in rows if row[0]["objectives"] == count]) for count in counts
    ]
    return [*parts, (None, rows)] if len(counts) > 1 else parts


def _metrics(rows: _Rows) -> tuple[str, ...]:
    """``METRICS``, with the judge where it judged both."""
    both = [row for pair in rows for row in pair]
    return METRICS + tuple(key for key in percent_metrics(both) if key not in METRICS)


def _difference(
    pair: tuple[Name, Name],
    rows: _Rows,
    objectives: int | None,
    metric: str,
    samples: int,
    seed: int,
) -> Difference:
    scale = 100.0 if metric in (*PERCENT, JUDGE) else 1.0
    values = [scale * (second[metric] - first[metric]) for first, second in rows]
    interval: tuple[float, float] | None = None
    if samples:
        low, high = bootstrap_interval(values, samples, seed)
        interval = (low, high)
    value = sum(values) / len(values)
    return Difference(*pair, objectives, metric, len(rows), value, interval)
