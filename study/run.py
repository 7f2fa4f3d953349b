"""Trains and evaluates one cell, and keeps what the report needs in one small file."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mempo.demonstrations.shipped import SHIPPED
from mempo.runtime.run_files import write_json
from mempo.runtime.run_folder import EVALUATION_TASKS_FILE, MODEL_FOLDER
from study.cells import BASE, CONTEXTS, START, Cell, Further, Plan

ROOT: Final = Path(__file__).resolve().parent.parent
_OF_START: Final = ("model=tiny", "evaluation.max_round_tokens=160")
"""A bare folder brings no settings: those of ``BASE``, as far as evaluation reads them."""
FIGURES: Final = ("exact_match", "total_tokens", "peak_tokens", "rounds")


def result_path(results: Path, cell: Cell) -> Path:
    """Where a cell's figures are kept."""
    return results / f"{cell.name}.json"


def run_cell(cell: Cell, plan: Plan, runs: Path, results: Path) -> None:
    """Trains, evaluates and writes ``results/<cell>.json``; goes on with what was begun. Raises
    ``RuntimeError`` with the command that failed."""
    folder = runs / cell.name
    train = train_command(cell, plan, folder)
    begun = time.monotonic()
    if train is not None and not (folder / MODEL_FOLDER / "config.json").is_file():
        _run(train)
    trained = time.monotonic()
    evaluate = evaluate_command(cell, plan, folder)
    _run(evaluate)
    record = {
        "variant": cell.variant.name,
        "title": cell.variant.title,
        "seed": cell.seed,
        "commands": [_readable(command) for command in (train, evaluate) if command],
        "seconds": [round(trained - begun), round(time.monotonic() - trained)],
        "tasks": read_tasks(folder / "evaluation" / EVALUATION_TASKS_FILE),
    }
    write_json(result_path(results, cell), record)


def run_further(cell: Cell, further: Further, plan: Plan, runs: Path, results: Path) -> None:
    """Asks a cell that is done something else, and writes it to ``further_path``. Raises
    ``RuntimeError`` with the command that failed."""
    command = evaluate_command(cell, plan, runs / cell.name, further)
    _run(command)
    record = {
        "variant": cell.variant.name,
        "title": cell.variant.title,
        "seed": cell.seed,
        "further": further.title,
        "commands": [_readable(command)],
        "tasks": read_tasks(runs / cell.name / further.name / EVALUATION_TASKS_FILE),
    }
    path = further_path(results, cell, further)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def further_path(results: Path, cell: Cell, further: Further) -> Path:
    """Where the figures of what a cell was asked besides are kept."""
    return results / "further" / f"{further.name}-{cell.name}.json"


def train_command(cell: Cell, plan: Plan, folder: Path) -> list[str] | None:
    """Of the start ``None``: it is there."""
    if cell.variant == START:
        return None
    settings = (BASE, *plan.overrides, *cell.variant.settings, f"seed={cell.seed}")
    quiet = ("evaluation.enabled=false", "logger=none", "callbacks.progress_bars=false")
    return ["train.py", *settings, *quiet, f"run_dir={folder}", "resume=auto"]


def evaluate_command(
    cell: Cell, plan: Plan, folder: Path, further: Further | None = None
) -> list[str]:
    """Greedy, on tasks that no training saw, the same for all cells."""
    start = cell.variant == START
    objectives = plan.objectives if further is None else further.objectives
    return [
        "evaluate.py",
        *((*_OF_START, f"evaluation.model_path={SHIPPED}") if start else ()),
        *(() if start else (f"evaluation.model_path={folder}",)),
        f"evaluation.objectives=[{','.join(map(str, objectives))}]",
        f"evaluation.contexts=[{','.join(CONTEXTS)}]",
        f"evaluation.tasks={plan.tasks}",
        f"data.world.heldout_tasks={plan.tasks}",
        *(() if further is None else further.settings),
        "evaluation.bootstrap_samples=0",
        "callbacks.progress_bars=false",
        f"run_dir={folder / ('evaluation' if further is None else further.name)}",
    ]


def read_tasks(path: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The figures of every task by context and number of questions, in the order of the tasks.
    Exact match is the share of a task's questions × 100."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            count = found.setdefault(row["context"], {}).setdefault(row["objectives"], {})
            for name in FIGURES:
                scale = 100.0 if name == "exact_match" else 1.0
                count.setdefault(name, []).append(round(scale * float(row[name]), 3))
    return found


def read_results(results: Path) -> list[dict[str, Any]]:
    """What has been done so far, in the order of the files' names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]


def _readable(command: Sequence[str]) -> str:
    """As a person would type it in a checkout."""
    text = shlex.join(["python", *command])
    return text.replace(f"{ROOT}/", "")


def _run(command: list[str]) -> None:
    print(f"$ {_readable(command)}", flush=True)
    done = subprocess.run([sys.executable, *command], cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {_readable(command)}")
