"""``python -m mempo.inspect RUN_FOLDER``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mempo.inspect.document import render_page, write_page
from mempo.inspect.reading import read_run
from mempo.inspect.server import make_server
from mempo.inspect.views import Limits
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command

LIVE_BUDGET: Final = 4_000_000
"""Bytes of trajectories in a page that is made anew with every epoch."""


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    options = _parser().parse_args(arguments)
    usual = Limits()
    limits = Limits(
        trajectories=options.trajectories,
        observation_chars=options.observation_chars,
        budget=LIVE_BUDGET if options.serve else usual.budget,
    )
    if options.serve:
        with make_server(options.run, limits, options.port) as server:
            print(f"{server.address} shows {options.run}; Ctrl-C ends it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    run = read_run(options.run)
    output = options.output or options.run / "inspector.html"
    write_page(output, render_page(run, limits))
    print(f"wrote {output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command("inspect", "mempo.inspect"),
        description="Shows what a run did: one page that needs no network.",
    )
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: inspector.html in the run folder"
    )
    parser.add_argument(
        "--trajectories",
        type=_positive,
        metavar="N",
        help="at most this many, the newest and the best and worst by memory reward; default: as "
        "many as a page of about 20 MB holds",
    )
    parser.add_argument(
        "--observation-chars",
        type=_positive,
        metavar="N",
        default=Limits().observation_chars,
        help="characters of each observation that the page holds (default %(default)s)",
    )
    parser.add_argument("--serve", action="store_true", help="show it live on localhost")
    parser.add_argument("--port", type=int, default=8765, metavar="N", help="default %(default)s")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


if __name__ == "__main__":
    main()
