"""``python -m mempo.forgetting RUN_OR_TRAJECTORIES_FILE``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mempo.evaluation.tables import print_whole
from mempo.forgetting.picture import draw_report
from mempo.forgetting.report import DETAILED_GROUPS, read_report, trajectories_file
from mempo.forgetting.tables import report_tables
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command
from mempo.runtime.run_files import write_json

JSON_FILE: Final = "forgetting.json"
PICTURE_FILE: Final = "forgetting.png"


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("forgetting", "mempo.forgetting"),
        description="What memories hold on to and what they lose (docs/evaluation.md).",
    )
    parser.add_argument("run", type=Path, metavar="RUN_OR_TRAJECTORIES_FILE")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="default: the trajectories file's folder"
    )
    options = parser.parse_args(arguments)
    file = trajectories_file(options.run)
    report = read_report(file)
    folder = options.output or file.parent
    write_json(folder / JSON_FILE, report.as_json())
    draw_report(folder / PICTURE_FILE, report)
    for table in report_tables(report):
        print_whole(table)
    if len(report.detailed()) == DETAILED_GROUPS < len(report.groups):
        print(f"in detail: {DETAILED_GROUPS} of the groups; {JSON_FILE} holds all")
    if report.others:
        print(f"{report.others} trajectories of other tasks were left out: their facts are unknown")
    if report.memoryless:
        names = ", ".join(report.memoryless)
        print(f"left out, because their agent writes no memory: {names}")
    print(f"wrote {folder / JSON_FILE} and {folder / PICTURE_FILE}")


if __name__ == "__main__":
    main()
