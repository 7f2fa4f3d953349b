"""The report as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mempo.forgetting.figures import CAUSES
from mempo.forgetting.report import Group, Report

_LINES: Final = (
    ("facts held or made up for (held: dashed)", "rounds since the fact was established",
     "by_age", "kept_share", "held_share"),
    ("facts lost, of those carried", "round", "by_round", "share", None),
    ("P_mem (P_full: dashed)", "round", "probabilities_by_round", "p_mem", "p_full"),
)  # fmt: skip
"""Title, axis, part of the figures, what is drawn, and what is drawn dashed."""


def draw_report(path: Path, report: Report) -> None:
    """Up to four panels for the groups that are shown in detail: held by age, lost by round, wrong
    objectives by cause, and, where memories were scored, P_mem and P_full by round."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = report.detailed()
    panels = [one for one in _LINES if any(group.figures[one[2]] for group in groups)]
    figure = Figure(figsize=(4.6 * (len(panels) + 1), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels) + 1, squeeze=False)[0]
    for axis, (title, below, part, key, dashed) in zip(axes, panels, strict=False):
        axis.set_title(title)
        axis.set_xlabel(below)
        for number, group in enumerate(groups):
            _draw(axis, group, part, key, f"C{number}", "-")
            if dashed is not None:
                _draw(axis, group, part, dashed, f"C{number}", "--")
    _draw_causes(axes[-1], groups)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_ylim(0.0, 1.05)
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside upper center", ncols=6)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw(axis: Any, group: Group, part: str, key: str, color: str, style: str) -> None:
    points = {int(n): one[key] for n, one in group.figures[part].items() if one[key] is not None}
    axis.plot(list(points), list(points.values()), style, color=color, marker=".", linewidth=1.2)


def _draw_causes(axis: Any, groups: Sequence[Group]) -> None:
    axis.set_title("wrong objectives by cause, share of all")
    width = 0.8 / len(groups)
    for number, group in enumerate(groups):
        figures = group.figures
        shares = [figures["wrong_objectives"][c] / figures["objectives"] for c in CAUSES]
        places = [index + width * (number - (len(groups) - 1) / 2) for index in range(len(CAUSES))]
        axis.bar(places, shares, width, color=f"C{number}", label=group.label)
    axis.set_xticks(range(len(CAUSES)), CAUSES)
