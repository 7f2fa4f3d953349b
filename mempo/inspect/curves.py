"""The run's curves as SVG whose colours come from the page, so that they fit light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mempo.records.smoothing import SMOOTHED_FROM, running_mean

LEFT, RIGHT, BOTTOM, TOP = 0.13, 0.985, 0.13, 0.96
"""The plot's edges as shares of the picture: the page's script finds the epoch under the pointer
with them."""

# Colours that stand for the page's variables until the SVG is written.
_INK, _LINE = "#000001", "#000002"
_SERIES: Final = tuple(f"#0000{16 + number:x}" for number in range(8))


@dataclass(frozen=True)
class Panel:
    """One picture. ``keys`` are labels and metrics; ``pattern`` finds further metrics, whose group
    becomes the label. ``zero`` draws a line at 0."""

    title: str
    keys: tuple[tuple[str, str], ...] = ()
    pattern: str | None = None
    zero: bool = False


PANELS: Final = (
    Panel(
        "Reward",
        (
            ("reward", "reward/mean"),
            ("exact match", "reward/exact_match"),
            ("format valid", "reward/format_valid"),
        ),
    ),
    Panel("Reward by source", pattern=r"reward_by_source/(.+)"),
    Panel("Exact match by source", pattern=r"exact_match_by_source/(.+)"),
    Panel("Memory reward, mean", (("memory reward", "memory/reward_mean"),), zero=True),
    Panel(
        "Probability of the gold answer",
        (("P full", "memory/p_full_mean"), ("P mem", "memory/p_mem_mean")),
    ),
    Panel("Memory reward by round", pattern=r"memory_reward_by_round/(round_\d+)", zero=True),
    Panel("Memory advantage by round", pattern=r"memory_advantage_by_round/(round_\d+)", zero=True),
    Panel("Memory tokens by round", pattern=r"memory_tokens_by_round/(round_\d+)"),
    Panel("Endings, share", pattern=r"ending/(\w+)"),
    Panel(
        "Tokens per trajectory",
        (
            ("total", "tokens/total_mean"),
            ("peak", "tokens/peak_mean"),
            ("policy", "tokens/policy_mean"),
        ),
    ),
    Panel("Tools", pattern=r"tools/(calls|failures|errors)"),
    Panel(
        "Shares to watch",
        (
            ("constant groups", "groups/constant_share"),
            ("memory written", "memory/written_share"),
            ("clipped", "update/clip_share"),
        ),
    ),
    Panel(
        "Confidence filter, shares",
        (
            ("kept in P full", "filter/kept_full"),
            ("kept in P mem", "filter/kept_mem"),
            ("none kept in P full", "filter/none_kept_full"),
            ("none kept in P mem", "filter/none_kept_mem"),
        ),
    ),
    Panel("Gradient norm", (("gradient norm", "update/gradient_norm"),)),
    Panel("Entropy", (("entropy", "update/entropy_mean"),)),
    Panel("Mismatch of engine and trainer", (("mean", "engine/mismatch_mean"),)),
    Panel("Seconds by phase", pattern=r"seconds/(\w+)"),
)


@dataclass(frozen=True)
class Series:
    """One curve; ``values`` has an entry for each epoch, ``None`` where none was logged."""

    label: str
    key: str
    values: list[float | None]


@dataclass(frozen=True)
class Chart:
    """A drawn panel: its series over ``epochs`` (counted from 1) and the SVG."""

    title: str
    epochs: list[int]
    series: list[Series]
    svg: str

    @property
    def smoothed(self) -> bool:
        """Whether the thick lines are running means."""
        return len(self.epochs) >= SMOOTHED_FROM

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script reads out under the pointer."""
        return {
            "epochs": self.epochs,
            "range": epoch_range(self.epochs),
            "edges": (LEFT, RIGHT),
            "series": [
                [one.label, [None if v is None else float(f"{v:.5g}") for v in one.values]]
                for one in self.series
            ],
        }


def draw_charts(metrics: Sequence[dict[str, float]]) -> list[Chart]:
    """A chart for each panel of which anything was logged."""
    charts = []
    epochs = [int(record["epoch"]) + 1 for record in metrics]
    for number, panel in enumerate(PANELS):
        series = panel_series(panel, metrics)
        if series:
            svg = _draw(epochs, series, panel.zero, salt=f"chart{number}")
            charts.append(Chart(panel.title, epochs, series, svg))
    return charts


def panel_series(panel: Panel, metrics: Sequence[dict[str, float]]) -> list[Series]:
    """The panel's curves of which the metrics hold anything worth a line."""
    keys = list(panel.keys)
    if panel.pattern is not None:
        logged = dict.fromkeys(key for record in metrics for key in record)
        matches = [match for key in logged if (match := re.fullmatch(panel.pattern, key))]
        matches.sort(key=lambda match: _natural(match.string))
        keys += [(match.group(1).replace("_", " "), match.string) for match in matches]
    series = [Series(label, key, [record.get(key) for record in metrics]) for label, key in keys]
    return [one for one in series if any(v is not None for v in one.values) and _worth_it(one)]


def epoch_range(epochs: Sequence[int]) -> tuple[int, int]:
    """The ends of the horizontal axis; a single epoch stands in the middle."""
    first, last = epochs[0], epochs[-1]
    return (first, last) if last > first else (first - 1, first + 1)


def metric_rows(metrics: Sequence[dict[str, float]]) -> list[tuple[str, list[str]]]:
    """Every logged metric with its first, last, least and largest value."""
    keys = sorted({key for record in metrics for key in record} - {"epoch"}, key=_natural)
    rows = []
    for key in keys:
        values = [record[key] for record in metrics if key in record]
        rows.append((key, [f"{v:.4g}" for v in (values[0], values[-1], min(values), max(values))]))
    return rows


def _worth_it(series: Series) -> bool:
    """False for endings that never came, and for the shares of a filter that is off."""
    if series.key.startswith("filter/kept"):
        return any(value not in (None, 1.0) for value in series.values)
    return not series.key.startswith(("ending/", "filter/")) or any(series.values)


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorts round_2 before round_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def _draw(epochs: Sequence[int], series: Sequence[Series], zero: bool, salt: str) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.color": _INK,
        "axes.edgecolor": _LINE,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _LINE,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.4, 2.5))
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        figure.subplots_adjust(left=LEFT, right=RIGHT, bottom=BOTTOM, top=TOP)
        axis = figure.subplots()
        axis.patch.set_visible(False)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(linewidth=0.6)
        axis.tick_params(labelsize=8, length=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        axis.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axis.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:.4g}".replace("-", "−"))
        )
        axis.set_xlim(*epoch_range(epochs))
        if zero:
            axis.axhline(0.0, color=_INK, linewidth=0.9)
        smoothed = len(epochs) >= SMOOTHED_FROM
        for number, one in enumerate(series):
            color = _SERIES[number % len(_SERIES)]
            points = [float("nan") if v is None else v for v in one.values]
            width, alpha = (0.8, 0.35) if smoothed else (1.6, 1.0)
            # A value between two gaps is a point, not a line.
            marker = "." if not smoothed or None in one.values else None
            axis.plot(
                epochs,
                points,
                color=color,
                marker=marker,
                markersize=3 if smoothed else 6,
                linewidth=width,
                alpha=alpha,
            )
            if smoothed:
                means = [float("nan") if v is None else v for v in running_mean(one.values)]
                axis.plot(epochs, means, color=color, linewidth=1.8)
        written = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return _for_the_page(written.getvalue())


def _for_the_page(svg: str) -> str:
    """Only the picture: no addresses of XML namespaces, no fixed size, the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", head)
    svg = f'{head} aria-hidden="true">{body}'.replace("xlink:href", "href")
    svg = svg.replace(_INK, "var(--soft)").replace(_LINE, "var(--line)")
    for number, color in enumerate(_SERIES):
        svg = svg.replace(color, f"var(--series-{number})")
    return svg
