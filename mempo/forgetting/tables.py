"""The report as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from mempo.forgetting.figures import CAUSES
from mempo.forgetting.report import Group, Report

_AGES: Final = (1, 2, 4, 8)
_BINS: Final = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 16), (17, 24),
                (25, 32), (33, 48), (49, None))  # fmt: skip
_CAUSE_TITLES: Final = {
    "lost": "a fact lost",
    "unwritten": "never written",
    "unseen": "never found",
    "known": "all known",
}


def report_tables(report: Report) -> list[Table]:
    """The summary, wrong objectives by cause, and what is held, lost and scored by age or round."""
    detailed = report.detailed()
    tables = [
        _summary(report.groups),
        _causes(report.groups),
        _binned(
            "Established facts that a memory still holds",
            "rounds ago",
            detailed,
            lambda figures: figures["by_age"],
            ("held", "memories"),
        ),
        _binned(
            "Facts lost, of those that the memory before carried",
            "round",
            detailed,
            lambda figures: figures["by_round"],
            ("lost", "carried"),
        ),
    ]
    if any(group.figures["probabilities_by_round"] for group in detailed):
        tables.append(_probabilities(detailed))
    return tables


def _summary(groups: Sequence[Group]) -> Table:
    table = Table(title="Forgetting")
    table.add_column("")
    for title in (
        "trajectories", "facts", "established", *(f"held after {age}" for age in _AGES),
        "held, all ages", "wrong", "from a lost fact",
    ):  # fmt: skip
        table.add_column(title, justify="right")
    for group in groups:
        figures = group.figures
        by_age = figures["by_age"]
        table.add_row(
            group.label,
            str(figures["trajectories"]),
            str(figures["facts"]),
            str(figures["established"]),
            *(_percent(by_age.get(str(age), {}).get("held_share")) for age in _AGES),
            _percent(figures["all_ages"]["held_share"]),
            f"{figures['wrong_trajectories']} ({_percent(figures['wrong_share'])})",
            f"{figures['wrong_from_lost_fact']} ({_percent(figures['wrong_from_lost_share'])})",
        )
    return table


def _causes(groups: Sequence[Group]) -> Table:
    table = Table(title="Objectives answered wrong, by what the last memory misses")
    table.add_column("")
    table.add_column("objectives", justify="right")
    for cause in CAUSES:
        table.add_column(_CAUSE_TITLES[cause], justify="right")
    for group in groups:
        counts = group.figures["wrong_objectives"]
        cells = (str(counts[cause]) for cause in CAUSES)
        table.add_row(group.label, str(group.figures["objectives"]), *cells)
    return table


def _binned(
    title: str,
    first_column: str,
    groups: Sequence[Group],
    part: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    names: tuple[str, str],
) -> Table:
    """One column per group: the share ``names[0]`` / ``names[1]`` and how many stand below."""
    table = Table(title=title)
    table.add_column(first_column, justify="right")
    for group in groups:
        table.add_column(group.label, justify="right")
    for low, high in _BINS:
        cells = []
        for group in groups:
            found = _within(part(group.figures), low, high)
            above, below = (sum(one[name] for one in found) for name in names)
            cells.append(f"{_percent(above / below)} of {below}" if below else "")
        if any(cells):
            table.add_row(_bin_label(low, high), *cells)
    return table


def _probabilities(groups: Sequence[Group]) -> Table:
    table = Table(title="P_mem / P_full, means over scored memories")
    table.add_column("round", justify="right")
    for group in groups:
        table.add_column(group.label, justify="right")
    for low, high in _BINS:
        cells = []
        for group in groups:
            found = _within(group.figures["probabilities_by_round"], low, high)
            means = [_weighted(found, key) for key in ("p_mem", "p_full")]
            cells.append(" / ".join(means) if found else "")
        if any(cells):
            table.add_row(_bin_label(low, high), *cells)
    return table


def _within(part: Mapping[str, Any], low: int, high: int | None) -> list[Mapping[str, Any]]:
    return [one for key, one in part.items() if low <= int(key) <= (high or int(key))]


def _weighted(found: Sequence[Mapping[str, Any]], key: str) -> str:
    scored = [one for one in found if one[key] is not None]
    count = sum(one["memories"] for one in scored)
    return f"{sum(one[key] * one['memories'] for one in scored) / count:.2f}" if count else "–"


def _bin_label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low}–"
    return str(low) if low == high else f"{low}–{high}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100.0 * share:.0f} %"
