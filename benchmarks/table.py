"""Runs the benchmarks one after the other and prints a table of their figures.

    python benchmarks/table.py                 small shapes of the tiny model, a few minutes
    python benchmarks/table.py --full          the shapes of docs/benchmarks.md, about two hours
    python benchmarks/table.py --only scoring update

Prints the commands, what the scripts print, and last a table in Markdown with the figures, the
versions and the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

SMALL = (
    "scoring.py --rounds 8 --trajectories 1 --repeats 3",
    "scoring.py --rounds 16 --prompt 100 --generated 40 --memory 20 --observed 60 --answer 10 "
    "--trajectories 1 --tree-only --doubled --repeats 3",
    "update.py",
    "rollout.py --trajectories 16 --rounds 3 --generated 64 --straggler-seconds 2 --repeats 2",
    "step.py single --prompts 2 --repeats 2",
    "retrieval.py --passages 5000 --vocabulary 50000 --queries 200 --against-memory",
    "step.py tools --repeats 2",
)
FULL = (
    "scoring.py --model smollm2 --rounds 8",
    "scoring.py --model smollm2 --rounds 32 --prompt 100 --generated 40 --memory 20 --observed 60 "
    "--answer 10",
    "scoring.py --model smollm2 --rounds 16 --prompt 100 --generated 40 --memory 20 --observed 60 "
    "--answer 10 --tree-only --doubled --repeats 3",
    "update.py --model smollm2",
    "update.py --model smollm2 --dtype bfloat16",
    "rollout.py",
    "rollout.py --model smollm2 --dtype bfloat16",
    "step.py single",
    "step.py single --model smollm2",
    "step.py tools",
    "retrieval.py --passages 20000 --against-memory --server-seconds 60",
    "retrieval.py --passages 1000000",
    "retrieval.py --passages 5000000 --queries 500",
)
FIGURES = (
    "ratio",
    "ratio_sorted",
    "tokens_ratio_sorted",
    "max_abs_diff",
    "peak_memory_ratio",
    "ratio_with_old",
    "doubled_time_ratio",
    "time_ratio",
    "memory_ratio",
    "peak_share",
    "loop_over_generate",
    "loop_over_generate_200ms",
    "slow_tool_delay_ratio",
    "trajectories_per_minute",
    "seconds_step",
    "build_seconds",
    "build_peak_gib",
    "query_ms_median",
    "query_ms_p95",
    "serve_resident_gib",
    "speedup",
    "speedup_memory",
    "same_top5",
    "server_answers",
    "server_errors",
    "server_ms_p95",
)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    commands = [
        command
        for command in (FULL if arguments.full else SMALL)
        if command.split(".py")[0] in arguments.only
    ]
    results = [(command, run(command)) for command in commands]
    print("\n| command | figure | value |\n|---|---|---|")
    for command, result in results:
        shown = f"`{command}`"
        for figure in FIGURES:
            if result.get(figure) is not None:
                print(f"| {shown} | {figure} | {result[figure]:g} |")
                shown = ""
    if results:
        machine = results[-1][1]["machine"]
        print("\n" + ", ".join(f"{name} {value}" for name, value in machine.items()))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    names = ["scoring", "update", "rollout", "step", "retrieval"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the shapes of docs/benchmarks.md")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="scripts to run")
    return parser.parse_args(argv)


def run(command: str) -> dict[str, Any]:
    """Runs one script in a process of its own; the JSON of its last line."""
    print(f"\npython benchmarks/{command}", flush=True)
    script, *arguments = shlex.split(command)
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, str(FOLDER / script), *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if not line.startswith("{"):
                print(line, end="", flush=True)
    if process.returncode or not lines:
        raise SystemExit(f"benchmarks/{command} ended with {process.returncode}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


if __name__ == "__main__":
    main()
