"""Runs every check that this machine can, and writes a JSON file and a page.

    python -m gpu_check              all that this machine has the devices for
    python -m gpu_check --quick      short checks
    python -m gpu_check --only update "tree scoring"

Exit status 1 where a check failed; the others run all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine
from gpu_check.check import Check
from gpu_check.checks import CHECKS
from gpu_check.page import page, shown, verdict
from gpu_check.running import Measured, Outcome, run_check


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = parse(arguments)
    gpus = torch.cuda.device_count()
    about = describe(gpus)
    outcomes: list[Outcome] = []
    seen: dict[str, Measured] = {}
    wanted = chosen(options)
    for number, check in enumerate(wanted, start=1):
        print(f"{number} of {len(wanted)}, {check.name}: {check.shows}", flush=True)
        outcomes.append(run_check(check, gpus, seen))
        print(f"  {told(outcomes[-1])}", flush=True)
        write(options.output, about, outcomes)
    print(verdict(outcomes))
    print(f"written to {options.output}.json and {options.output}.html")
    return int(any(one.state == "failed" for one in outcomes))


def chosen(options: argparse.Namespace) -> list[Check]:
    """The checks that were asked for, in their order."""
    names = {check.name for check in CHECKS}
    if unknown := set(options.only) - names:
        raise SystemExit(f"error: --only {min(unknown)}: choose of {'; '.join(sorted(names))}")
    wanted = [check for check in CHECKS if not options.quick or check.quick]
    return [check for check in wanted if not options.only or check.name in options.only]


def told(one: Outcome) -> str:
    """A line of the terminal."""
    if one.figure is None:
        return f"{one.state}: {one.said}"
    limit = "" if one.limit is None else f", limit {one.limit:g}"
    also = ", ".join(f"{name} {shown(value)}" for name, value in one.also.items())
    why = "".join(f"\n  {text}" for text in (also, one.said, one.remedy) if text)
    return f"{one.state}: {one.figure:.4g}{limit}, {one.seconds:g} s{why}"


def describe(gpus: int) -> dict[str, Any]:
    """Versions, processor and cards."""
    found: dict[str, Any] = {**machine(), "gpus": gpus, "cuda": torch.version.cuda}
    for index in range(gpus):
        card = torch.cuda.get_device_properties(index)
        found[f"gpu {index}"] = f"{card.name}, {card.total_memory / 2**30:.1f} GiB"
    return found


def write(output: Path, about: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Both files, anew after each check: what was found stays when the next one ends it all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": about, "checks": [asdict(one) for one in outcomes]}
    output.with_suffix(".json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    output.with_suffix(".html").write_text(page(about, outcomes), encoding="utf-8")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="five short checks")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these checks")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/gpu-check"), help="default runs/gpu-check"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
