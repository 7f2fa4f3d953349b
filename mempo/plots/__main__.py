"""``python -m mempo.plots RUN_FOLDER [RUN_FOLDER ...]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mempo.plots.pictures import PICTURES, save, usual_window
from mempo.plots.runs import group_runs, read_plot_run
from mempo.records.smoothing import SMOOTHED_FROM, WINDOW
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("plots", "mempo.plots"),
        description="Draws the learning curve, the memory reward by round, and quality against "
        "tokens, as PNG and SVG. Runs that differ in their seed only are one line with a band from "
        "the least to the largest.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("plots"),
        metavar="FOLDER",
        help="where the files go (default %(default)s)",
    )
    parser.add_argument(
        "--smooth",
        type=_odd,
        metavar="N",
        help=f"running mean over N epochs, an odd number; 1: none (default: {WINDOW} from "
        f"{SMOOTHED_FROM} epochs on)",
    )
    options = parser.parse_args(arguments)
    groups = group_runs([read_plot_run(run) for run in options.runs])
    for name, draw in PICTURES.items():
        figure = draw(groups, options.smooth or usual_window(groups))
        if figure is None:
            print(f"{name} is left out: no run has what it shows")
            continue
        for file in save(figure, options.output / name):
            print(f"wrote {file}")


def _odd(text: str) -> int:
    number = int(text)
    if number < 1 or number % 2 == 0:
        raise argparse.ArgumentTypeError("it must be an odd number, at least 1")
    return number


if __name__ == "__main__":
    main()
