"""A picture of what runs learnt, from their ``metrics.jsonl``.

python -m mempo.learning_curve RUN_FOLDER [RUN_FOLDER ...] --output curves.png
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from mempo.cli import friendly_errors
from mempo.errors import MempoError
from mempo.run_files import read_lines

PANELS = (
    ("reward", "reward/mean"),
    ("exact match", "reward/exact_match"),
    ("memory reward", "memory/reward_mean"),
    ("tokens per trajectory", "tokens/total_mean"),
)


@dataclass(frozen=True)
class Curve:
    """One run: its label and the (epoch, value) points of each metric."""

    label: str
    points: dict[str, list[tuple[int, float]]]


def read_curve(run: Path) -> Curve:
    """Reads a run folder. Raises ``MempoError`` when it holds no metrics."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise MempoError(f"{path}: no such file; name a folder that train.py wrote")
    records = read_lines(path)
    if not records:
        raise MempoError(f"{path} is empty: no epoch of that run has ended")
    points = {
        key: [(record["epoch"] + 1, record[key]) for record in records if key in record]
        for _, key in PANELS
    }
    return Curve(label=_label(run), points=points)


def _label(run: Path) -> str:
    """The algorithm's name from the run's configuration, else the folder's name."""
    config = run / ".hydra" / "config.yaml"
    if not config.is_file():
        return run.resolve().name
    name = OmegaConf.select(OmegaConf.load(config), "algorithm.name")
    return str(name or run.resolve().name)


def distinct_labels(curves: Sequence[Curve], runs: Sequence[Path]) -> list[str]:
    """The curves' labels; those that several runs share get the folder's name behind them."""
    counts = Counter(curve.label for curve in curves)
    return [
        f"{curve.label} ({run.resolve().name})" if counts[curve.label] > 1 else curve.label
        for curve, run in zip(curves, runs, strict=True)
    ]


def draw(runs: Sequence[Path], output: Path) -> None:
    """Draws the runs' learning curves into ``output`` (the suffix tells the format)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = [read_curve(run) for run in runs]
    labels = distinct_labels(curves, runs)
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex=True)
    for axis, (title, key) in zip(axes.flat, PANELS, strict=True):
        axis.set_title(title)
        axis.grid(alpha=0.3)
        for curve, label in zip(curves, labels, strict=True):
            epochs = [epoch for epoch, _ in curve.points[key]]
            values = [value for _, value in curve.points[key]]
            axis.plot(epochs, values, label=label, marker="." if len(epochs) < 30 else None)
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    axes.flat[2].axhline(0.0, color="grey", linewidth=0.8)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mempo.learning_curve",
        description="Draws reward, exact match, memory reward and tokens over epochs.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--output", type=Path, default=Path("learning_curve.png"), metavar="FILE")
    options = parser.parse_args(arguments)
    draw(options.runs, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
