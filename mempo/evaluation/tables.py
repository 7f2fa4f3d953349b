"""The tables of an evaluation, on the terminal and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from mempo.config.reward import JUDGE
from mempo.evaluation.differences import Difference, Name, Summaries
from mempo.judging.names import added_metrics

_TABLE_WIDTH: Final = 110
_COLUMNS: Final = (
    ("EM", "exact_match", "{:.1f}"),
    ("F1", "f1", "{:.1f}"),
    ("set F1", "f1_set", "{:.1f}"),
    ("format", "format_valid", "{:.2f}"),
    ("answered", "answered", "{:.2f}"),
    ("rounds", "rounds", "{:.1f}"),
    ("tools", "tool_calls", "{:.1f}"),
    ("failed", "tool_failures", "{:.1f}"),
    ("tokens", "total_tokens", "{:.0f}"),
    ("peak", "peak_tokens", "{:.0f}"),
)
_WITH_INTERVALS: Final = ("exact_match", "f1", JUDGE)
_TITLES: Final = {"judge_agreement": "agrees", "judge_failed": "no verdict"}
_DIFFERENCE_COLUMNS: Final = (
    ("EM", "exact_match", "{:+.1f}"),
    ("F1", "f1", "{:+.1f}"),
    ("rounds", "rounds", "{:+.1f}"),
    ("tokens", "total_tokens", "{:+.0f}"),
)
_CSV_COLUMNS: Final = (
    "exact_match", "exact_match_sum", "f1", "f1_sum", "f1_set", "f1_set_sum", "format_valid",
    "answered", "ending", "rounds", "repeated_rounds", "tool_calls", "tool_failures", "tool_errors",
    "total_tokens", "peak_tokens", "missing_parts", "extra_parts",
)  # fmt: skip


def wide_console(width: int = _TABLE_WIDTH) -> Console:
    """A console on which a table keeps its columns, also where there is no terminal."""
    return Console(width=max(Console().width, width))


def print_whole(table: Table) -> None:
    """Prints a table as wide as it needs to be, also where the terminal is narrower."""
    wide_console(_needed_width(table)).print(table)


def _needed_width(table: Table) -> int:
    unbounded = Console(width=10_000)
    return Measurement.get(unbounded, unbounded.options, table).maximum


def print_table(results: Mapping[str, Mapping[str, Mapping[str, Any]]], console: Console) -> None:
    """Training's table: one line per stage (outer key) and context mode (inner key)."""
    table = Table(title="Held-out evaluation")
    table.add_column("")
    table.add_column("context")
    columns = _columns(entry for entries in results.values() for entry in entries.values())
    for title, _, _ in columns:
        table.add_column(title, justify="right")
    for name, entries in results.items():
        for context, entry in entries.items():
            table.add_row(name, context, *(_cell(entry, key, form) for _, key, form in columns))
    if len(columns) > len(_COLUMNS):
        console.width = max(console.width, _needed_width(table))
    console.print(table)


def evaluation_table(entries: Mapping[Name, Mapping[str, Any]], labels: Mapping[str, str]) -> Table:
    """One line per model, context mode and number of objectives, 95 % intervals beside exact match,
    F1 and a judge's share. ``labels`` are short names of the models."""
    table = Table(title="Held-out evaluation")
    for title in ("model", "context"):
        table.add_column(title, no_wrap=True)
    for title in ("objectives", "tasks"):
        table.add_column(title, justify="right")
    columns = _columns(entries.values())
    for title, key, _ in columns:
        table.add_column(title, justify="right")
        if key in _WITH_INTERVALS:
            table.add_column("95 %", justify="right")
    for (model, context), entry in entries.items():
        for count, figures in _by_objectives(entry):
            cells: list[str] = []
            for _, key, form in columns:
                cells.append(_cell(figures, key, form))
                if key in _WITH_INTERVALS:
                    cells.append(_interval(figures.get("ci95", {}).get(key), "{:.0f}"))
            table.add_row(labels[model], context, count, str(figures["tasks"]), *cells)
        if len(entry["by_objectives"]) > 1:
            table.add_section()
    return table


def differences_table(differences: Sequence[Difference], labels: Mapping[str, str]) -> Table:
    """One line per pair and number of objectives: the second minus the first, with intervals."""
    table = Table(title="Paired differences on the same tasks")
    for title in ("", "minus"):
        table.add_column(title, no_wrap=True)
    table.add_column("objectives", justify="right")
    for title, _, _ in _DIFFERENCE_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    grouped: dict[tuple[Name, Name, int | None], dict[str, Difference]] = {}
    for one in differences:
        grouped.setdefault((one.first, one.second, one.objectives), {})[one.metric] = one
    several = any(objectives is None for _, _, objectives in grouped)
    for (first, second, objectives), found in grouped.items():
        table.add_row(
            *(f"{labels[model]}, {context}" for model, context in (second, first)),
            "all" if objectives is None else str(objectives),
            *(_difference_cell(found[key], form) for _, key, form in _DIFFERENCE_COLUMNS),
            end_section=several and objectives is None,
        )
    return table


def print_evaluation(
    entries: Mapping[Name, Mapping[str, Any]],
    differences: Sequence[Difference],
    labels: Mapping[str, str],
) -> None:
    """Both tables; the second only where there is something to compare."""
    print_whole(evaluation_table(entries, labels))
    if differences:
        print_whole(differences_table(differences, labels))


def write_tasks_csv(path: Path, summaries: Summaries) -> None:
    """One row per model, context mode, number of objectives and task. Answer metrics are shares
    of the task's objectives, not × 100."""
    added = added_metrics(key for tasks in summaries.values() for row in tasks for key in row)
    columns = (*_CSV_COLUMNS, *added)
    rows = (
        [model, context, row["objectives"], row["task"], *(row.get(key, "") for key in columns)]
        for (model, context), tasks in summaries.items()
        for row in tasks
    )
    _write_csv(path, ("model", "context", "objectives", "task", *columns), rows)


def write_differences_csv(path: Path, differences: Iterable[Difference]) -> None:
    """One row per pair, number of objectives (``all``: over all tasks) and metric."""
    header = (
        "model", "context", "minus_model", "minus_context", "objectives", "metric", "tasks",
        "difference", "low", "high",
    )  # fmt: skip
    rows = (
        [
            *one.second,
            *one.first,
            "all" if one.objectives is None else one.objectives,
            one.metric,
            one.tasks,
            one.value,
            *(one.interval or ("", "")),
        ]
        for one in differences
    )
    _write_csv(path, header, rows)


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _columns(entries: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """``_COLUMNS``, and behind the answer metrics one for each reward that they do not hold: the
    judge's verdicts, how far exact match shares them and, where some are missing, how many; and
    functions of one's own."""
    kept = list(entries)
    found = added_metrics(key for entry in kept for key in entry)
    missing = any(entry.get("judge_failed") for entry in kept)
    shown = [key for key in found if key != "judge_sum" and (missing or key != "judge_failed")]
    added = [(_TITLES.get(key, key), key, "{:.1f}" if key == JUDGE else "{:.2f}") for key in shown]
    return [*_COLUMNS[:3], *added, *_COLUMNS[3:]]


def _cell(figures: Mapping[str, Any], key: str, form: str) -> str:
    return form.format(figures[key]) if key in figures else "–"


def _by_objectives(entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(objectives, figures): the entry's own where there is one number, else also all together."""
    parts = entry["by_objectives"]
    if len(parts) == 1:
        return [(next(iter(parts)), entry)]
    return [*parts.items(), ("all", entry)]


def _difference_cell(one: Difference, form: str) -> str:
    interval = _interval(one.interval, form)
    return form.format(one.value) + (f" ({interval})" if interval else "")


def _interval(bounds: Sequence[float] | None, form: str) -> str:
    if bounds is None:
        return ""
    between = ", " if "+" in form else "–"
    return between.join(form.format(bound) for bound in bounds)
