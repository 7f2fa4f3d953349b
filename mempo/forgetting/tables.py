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
        _causes([*detailed, *(group for group in report.groups if group.epoch is None)]),
        _by_group(
            "Established facts that a memory holds + has made up for",
            "rounds ago",
            detailed,
            lambda figures, bounds: _kept_cell(_within(figures["by_age"], *bounds)),
        ),
        _by_group(
            "Facts lost, of those that the memory before carried",
            "round",
            detailed,
            lambda figures, bounds: _lost_cell(_within(figures["by_round"], *bounds)),
        ),
    ]
    if any(group.figures["probabilities_by_round"] for group in detailed):
        tables.append(
            _by_group(
                "P_mem / P_full, means over scored memories",
                "round",
                detailed,
                lambda figures, bounds: _scored_cell(
                    _within(figures["probabilities_by_round"], *bounds)
                ),
            )
        )
    return tables


def _summary(groups: Sequence[Group]) -> Table:
    table = Table(title="Forgetting")
    table.add_column("", no_wrap=True)
    for title in (
        "trajectories", "facts found", *(f"kept after {age}" for age in _AGES), "all ages",
        "wrong", "from a lost fact",
    ):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for group in groups:
        figures = group.figures
        by_age = figures["by_age"]
        table.add_row(
            group.label,
            str(figures["trajectories"]),
            f"{figures['established']} of {figures['facts']}",
            *(_percent(by_age.get(str(age), {}).get("kept_share")) for age in _AGES),
            _percent(figures["all_ages"]["kept_share"]),
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


Bounds = tuple[int, int | None]


def _by_group(
    title: str,
    first_column: str,
    groups: Sequence[Group],
    cell: Callable[[Mapping[str, Any], Bounds], str],
) -> Table:
    """A row for each bin of ages or rounds that holds something, a column for each group."""
    table = Table(title=title)
    table.add_column(first_column, justify="right", no_wrap=True)
    for group in groups:
        table.add_column(group.label, justify="right")
    for bounds in _BINS:
        cells = [cell(group.figures, bounds) for group in groups]
        if any(cells):
            table.add_row(_bin_label(*bounds), *cells)
    return table


def _kept_cell(found: Sequence[Mapping[str, Any]]) -> str:
    memories, held, made_up = (_total(found, key) for key in ("memories", "held", "made_up"))
    if not memories:
        return ""
    return f"{100 * held / memories:.0f} + {100 * made_up / memories:.0f} % of {memories}"


def _lost_cell(found: Sequence[Mapping[str, Any]]) -> str:
    carried = _total(found, "carried")
    return f"{_percent(_total(found, 'lost') / carried)} of {carried}" if carried else ""


def _scored_cell(found: Sequence[Mapping[str, Any]]) -> str:
    return " / ".join(_weighted(found, key) for key in ("p_mem", "p_full")) if found else ""


def _total(found: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(one[key] for one in found)


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
