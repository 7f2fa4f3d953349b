"""The pictures: learning curve, memory reward by round, quality against tokens.

A line is the mean over the runs of a group, the band around it reaches from the least to the
largest of them. Where curves are smoothed (a running mean of each run), the means as they were
stand behind them, thin and pale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mempo.plots.runs import Group, PlotRun
from mempo.records.smoothing import SMOOTHED_FROM, WINDOW

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS: Final = (
    ("reward", "reward/mean"),
    ("exact match", "reward/exact_match"),
    ("memory reward", "memory/reward_mean"),
    ("tokens per trajectory", "tokens/total_mean"),
)
BY_ROUND: Final = "memory_reward_by_round"
SUFFIXES: Final = (".png", ".svg")
_MARKED_BELOW: Final = 30
"""Curves with fewer epochs get a mark at each."""


def learning_curve(groups: Sequence[Group], window: int) -> Figure:
    """Reward, exact match, memory reward and tokens over epochs; a line for each group."""
    figure, axes = _figure(2, 2, (10.0, 6.5))
    for axis, (title, key) in zip(axes, PANELS, strict=True):
        axis.set_title(title)
        for number, group in enumerate(groups):
            _draw_metric(axis, group, key, window, f"C{number}", group.label)
    axes[2].axhline(0.0, color="grey", linewidth=0.8)
    for axis in axes[2:]:
        axis.set_xlabel("epoch")
    _legend(figure, axes)
    return figure


def memory_reward_by_round(groups: Sequence[Group], window: int) -> Figure | None:
    """Mean memory reward over epochs, a panel for each group and a line for each round; ``None``
    where no memory was scored."""
    import matplotlib as mpl

    scored = [(group, group.rounds(BY_ROUND)) for group in groups]
    scored = [(group, rounds) for group, rounds in scored if rounds]
    if not scored:
        return None
    columns = min(3, len(scored))
    lines = -(-len(scored) // columns)
    figure, axes = _figure(lines, columns, (max(5.0, 4.0 * columns), 1.0 + 3.2 * lines), True)
    last = max(number for _, rounds in scored for number in rounds)
    colours = mpl.colormaps["viridis"]
    for axis, (group, rounds) in zip(axes, scored, strict=False):
        axis.set_title(group.label)
        axis.axhline(0.0, color="grey", linewidth=0.8)
        for number in rounds:
            # The lightest end of the map is hard to see on white.
            colour = colours(0.9 * (number - 2) / max(last - 2, 1))
            key = f"{BY_ROUND}/round_{number}"
            _draw_metric(axis, group, key, window, colour, f"round {number}")
    for index, axis in enumerate(axes):
        axis.set_visible(index < len(scored))
        if index % columns == 0:
            axis.set_ylabel("memory reward")
        if index + columns >= len(scored):
            axis.set_xlabel("epoch")
            axis.tick_params(labelbottom=True)
    _legend(figure, axes[: len(scored)])
    return figure


def quality_against_tokens(groups: Sequence[Group]) -> Figure | None:
    """Exact match on the held-out tasks against tokens a task, with an arrow from before to after
    training, a panel for each context; ``None`` where no run has an evaluation.

    Points are means over a group's runs, bars reach from the least to the largest.
    """
    contexts = list(
        dict.fromkeys(c for group in groups for run in group.runs for c in _stage(run, "after"))
    )
    if not contexts:
        return None
    figure, axes = _figure(1, len(contexts), (max(5.0, 4.5 * len(contexts)), 4.2), True)
    for axis, context in zip(axes, contexts, strict=True):
        axis.set_title(f"{context} context")
        axis.set_xlabel("tokens a task")
        for number, group in enumerate(groups):
            _draw_quality(axis, group, context, f"C{number}")
    axes[0].set_ylabel("exact match, %")
    _legend(figure, axes)
    return figure


def usual_window(groups: Sequence[Group]) -> int:
    """How many epochs the running mean covers when nothing is said; 1 is none."""
    longest = max(len(run.records) for group in groups for run in group.runs)
    return WINDOW if longest >= SMOOTHED_FROM else 1


def save(figure: Figure, path: Path) -> list[Path]:
    """Writes the figure as PNG and SVG, beside each other; ``path`` has no suffix."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    # Texts stay texts in the SVG, and the same runs give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        for file in files:
            nothing: dict[str, Any] = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(file, dpi=150, metadata=nothing)
    return files


def _figure(
    rows: int, columns: int, size: tuple[float, float], share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=share_y, squeeze=False).flat)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _draw_metric(axis: Axes, group: Group, key: str, window: int, colour: Any, label: str) -> None:
    band = group.band(key, window)
    if window > 1:  # what was smoothed, pale behind it
        raw = group.band(key)
        axis.plot(raw.epochs, raw.mean, color=colour, linewidth=0.7, alpha=0.3)
    marker = "." if len(band.epochs) < _MARKED_BELOW else None
    axis.plot(band.epochs, band.mean, color=colour, label=label, marker=marker)
    if band.low != band.high:
        axis.fill_between(band.epochs, band.low, band.high, color=colour, alpha=0.2, linewidth=0)


def _draw_quality(axis: Axes, group: Group, context: str, colour: str) -> None:
    before = _spread(group.runs, "before", context)
    after = _spread(group.runs, "after", context)
    if after is None:
        return
    if before is not None:
        axis.plot(*_middle(before), marker="o", color=colour, fillstyle="none")
        axis.annotate(
            "",
            xytext=_middle(before),
            xy=_middle(after),
            arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.6},
        )
    (x, y), tokens, quality = _middle(after), *after
    axis.errorbar(
        x,
        y,
        xerr=[[x - min(tokens)], [max(tokens) - x]],
        yerr=[[y - min(quality)], [max(quality) - y]],
        marker="o",
        linestyle="none",
        color=colour,
        label=group.label,
    )


def _spread(
    runs: Sequence[PlotRun], stage: str, context: str
) -> tuple[list[float], list[float]] | None:
    """Tokens and exact match of the runs that have this evaluation."""
    entries = [entries[context] for run in runs if context in (entries := _stage(run, stage))]
    if not entries:
        return None
    return [one["total_tokens"] for one in entries], [one["exact_match"] for one in entries]


def _stage(run: PlotRun, stage: str) -> Mapping[str, Any]:
    """The entries of ``evaluation.json`` before or after training, by context."""
    found: Mapping[str, Any] = run.evaluation.get(stage, {}).get("contexts", {})
    return found


def _middle(spread: tuple[Sequence[float], Sequence[float]]) -> tuple[float, float]:
    tokens, quality = spread
    return sum(tokens) / len(tokens), sum(quality) / len(quality)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend above the panels, in which each label stands once."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="outside upper center", ncols=min(4, len(handles))
        )


PICTURES: Final[Mapping[str, Callable[[Sequence[Group], int], Figure | None]]] = {
    "learning_curve": learning_curve,
    "memory_reward_by_round": memory_reward_by_round,
    "quality_against_tokens": lambda groups, window: quality_against_tokens(groups),
}
"""Every picture by the name of its files."""
