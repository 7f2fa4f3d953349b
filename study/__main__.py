"""Trains and evaluates what docs/study.md reports, cell by cell, and writes its tables.

    python -m study                      every cell that is not done yet, then the report
    python -m study --quick              three variants, one seed, ten epochs: ten minutes
    python -m study --only mempo grpo-1  variants or single cells
    python -m study --further            ask some cells that are done other questions
    python -m study --report             the report of what is done

A cell is one variant trained from one seed. What is done is not done again; a cell that was stopped
goes on from its last checkpoint. Settings behind ``--`` are used for every training run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from study.cells import FURTHER, FURTHER_VARIANTS, SEEDS, Cell, Plan, cells, quick
from study.picture import draw
from study.report import report
from study.run import (
    ROOT,
    further_path,
    read_results,
    result_path,
    run_cell,
    run_further,
)


def main(arguments: list[str]) -> None:
    """The command line."""
    options = parse(arguments)
    plan = Plan(seeds=tuple(options.seeds), overrides=tuple(options.settings))
    plan = quick(plan) if options.quick else plan
    place = "quick" if options.quick else "full"
    runs = ROOT / "runs" / "study" / place
    results = options.results or (runs / "results" if options.quick else ROOT / "docs" / "results")
    results.mkdir(parents=True, exist_ok=True)
    try:
        wanted = list(cells(plan, options.only))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    if options.further:
        ask_further(wanted, plan, runs, results)
    elif not options.report:
        for number, cell in enumerate(wanted, start=1):
            done = result_path(results, cell).is_file()
            note = "done already" if done else cell.variant.title
            print(f"cell {number} of {len(wanted)}, {cell.name}: {note}", flush=True)
            if not done:
                run_cell(cell, plan, runs, results)
    records = read_results(results)
    if not records:
        raise SystemExit(f"error: no cell is done: {results} is empty")
    tables = report(records, read_results(results / "further"))
    (results / "tables.md").write_text(tables, encoding="utf-8")
    draw(results / "study.png", records)
    print(f"written to {results / 'tables.md'} and study.png beside it", flush=True)


def ask_further(wanted: list[Cell], plan: Plan, runs: Path, results: Path) -> None:
    """Asks the cells of ``FURTHER_VARIANTS`` whose runs are there, from the first seed."""
    chosen = [
        cell
        for cell in wanted
        if cell.variant.name in FURTHER_VARIANTS and cell.seed == plan.seeds[0]
    ]
    for cell in chosen:
        for further in FURTHER:
            there = result_path(results, cell).is_file()
            done = further_path(results, cell, further).is_file()
            note = "done already" if done else further.title if there else "not trained yet"
            print(f"{cell.name}: {note}", flush=True)
            if there and not done:
                run_further(cell, further, plan, runs, results)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; what follows ``--`` are settings."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], help="variants, or cells such as mempo-1")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="default 0 1 2")
    parser.add_argument("--quick", action="store_true", help="the same road in ten minutes")
    parser.add_argument("--further", action="store_true", help="ask done cells other questions")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report")
    parser.add_argument("--results", type=Path, help="folder of the figures (docs/results)")
    settings: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, settings = arguments[:at], arguments[at + 1 :]
    options = parser.parse_args(arguments)
    options.settings = settings
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
