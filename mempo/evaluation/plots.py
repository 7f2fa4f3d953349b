"""The picture of an evaluation: quality and tokens against objectives and against rounds used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mempo.evaluation.differences import Name

_ROWS: Final = (("exact match, %", "exact_match"), ("tokens per task", "total_tokens"))
_COLUMNS: Final = (
    ("objectives per task", "by_objectives"),
    ("rounds used", "by_rounds"),
)
_MARKERS: Final = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."), ("v", "-"), ("P", "--"))
"""Symbol and line of each context mode; with several models the colour is the model's."""
_LARGEST_MARKER: Final = 120.0
"""Area in square points of the marker that stands for all tasks."""


def draw_evaluation(
    path: Path, entries: Mapping[Name, Mapping[str, Any]], labels: Mapping[str, str]
) -> None:
    """Draws four panels, one line per model and context mode.

    By objectives: the mean with its 95 % interval. By rounds used: the mean of the tasks that took
    that many rounds; a marker's area is their number.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    several = len({model for model, _ in entries}) > 1
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for row, (title, key) in enumerate(_ROWS):
        axes[row, 0].set_ylabel(title)
        for column, (_, part) in enumerate(_COLUMNS):
            axis = axes[row, column]
            axis.grid(alpha=0.3)
            for (model, context), entry in entries.items():
                label = f"{labels[model]}, {context}" if several else context
                by_context = list(dict.fromkeys(name for _, name in entries)).index(context)
                color = list(labels).index(model) if several else by_context
                _draw_line(axis, entry, part, key, f"C{color}", _MARKERS[by_context % 6], label)
    axes[0, 0].set_ylim(-3.0, 103.0)
    axes[1, 0].set_ylim(bottom=0.0)
    counts = sorted({int(count) for entry in entries.values() for count in entry["by_objectives"]})
    axes[0, 0].set_xticks(counts)
    axes[0, 0].set_xlim(counts[0] - 0.5, counts[-1] + 0.5)
    axes[0, 1].set_xscale("log", base=2)
    axes[0, 1].xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    for column, (title, _) in enumerate(_COLUMNS):
        axes[1, column].set_xlabel(title)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    # Without a date the same evaluation gives the same file.
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw_line(
    axis: Any,
    entry: Mapping[str, Any],
    part: str,
    key: str,
    color: str,
    marker: tuple[str, str],
    label: str,
) -> None:
    symbol, style = marker
    points = entry[part]
    places = [int(place) for place in points]
    values = [one[key] for one in points.values()]
    if part == "by_rounds":
        axis.plot(places, values, style, color=color, linewidth=1.0, alpha=0.5, label=label)
        sizes = [_LARGEST_MARKER * one["tasks"] / entry["tasks"] for one in points.values()]
        axis.scatter(places, values, s=sizes, color=color, marker=symbol)
        return
    axis.plot(places, values, style, color=color, marker=symbol, label=label)
    for place, value, one in zip(places, values, points.values(), strict=True):
        bounds = one.get("ci95", entry.get("ci95", {})).get(key)
        if bounds is not None:
            below, above = max(value - bounds[0], 0.0), max(bounds[1] - value, 0.0)
            axis.errorbar(place, value, yerr=[[below], [above]], color=color, capsize=3)
