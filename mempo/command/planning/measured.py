"""``dry_run=measured``: the memory of an update as torch's own trackers count it, without a GPU.

The measurement runs in a program of its own (``tracking.py``) and takes seconds to minutes: no
weights are loaded, and no tensor has storage. It counts what training holds in tensors. What CUDA,
its libraries and the allocator take beside them is not in it, nor is the engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from mempo.command.memory_estimate import MemoryPerDevice
from mempo.command.planning.advice import gib
from mempo.command.planning.subject import Subject, subject_of
from mempo.config import Config
from mempo.runtime.errors import MempoError

_PARTS: Final = {
    "weights": ("Sharded Param", "Parameter", "Reference"),
    "gradients": ("Sharded Grad", "Gradient", "DDP buckets"),
    "AdamW moments": ("OptState", "Optstate"),
}
"""Which of the trackers' categories are held between micro-batches."""

_PASSING: Final = "the pass itself"


@dataclass(frozen=True)
class Measured:
    """``categories``: bytes on one device at the fullest moment of a micro-batch, as the tracker
    names them; ``total`` is their sum."""

    categories: dict[str, int]
    total: int

    def parts(self) -> dict[str, int]:
        """The categories as the plan's own."""
        found = {
            part: sum(self.categories.get(name, 0) for name in names)
            for part, names in _PARTS.items()
        }
        return {**found, _PASSING: self.total - sum(found.values())}


def measure(config: Config, world_size: int) -> Measured:
    """Measures one micro-batch of the update on one of ``world_size`` devices.

    Raises ``ConfigError`` for a model whose sizes cannot be had (``subject_of``) and ``MempoError``
    for one that the trackers cannot follow.
    """
    return measure_each([subject_of(config, world_size)])[0]


def measure_each(subjects: Sequence[Subject]) -> list[Measured]:
    """As ``measure``, one after the other in one program."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "mempo.command.planning.tracking"],
        input=TypeAdapter(list[Subject]).dump_json(list(subjects)).decode(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MempoError(
            f"dry_run=measured cannot follow this model ({reason}); dry_run=true estimates it"
        )
    return [
        Measured(
            {name: size for name, size in one.items() if size and name != "Total"}, one["Total"]
        )
        for one in json.loads(done.stdout.splitlines()[-1])
    ]


def print_measured(found: Measured, plan: MemoryPerDevice, console: Console | None = None) -> None:
    """Prints what was measured by category, and its parts beside those of the plan."""
    console = console or Console()
    table = Table(title="Measured: an update on one device", title_justify="left")
    table.title_style = "bold"
    for name in ("", "measured", "the plan"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    planned = planned_parts(plan)
    for part, size in found.parts().items():
        table.add_row(part, gib(size), gib(planned[part]), end_section=part == _PASSING)
    table.add_row("total", gib(found.total), gib(sum(planned.values())))
    console.print(table)
    categories = sorted(found.categories.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {gib(size)}" for name, size in categories)
    difference = sum(planned.values()) / found.total - 1
    console.print(
        f"By the tracker's names: {named}. The plan is {abs(difference):.0%} "
        f"{'above' if difference >= 0 else 'below'} what was measured, with tensors without "
        "storage and collectives that do nothing. CUDA and the engine are in neither column.",
        highlight=False,
    )


def planned_parts(plan: MemoryPerDevice) -> dict[str, int]:
    """The plan's figures in the parts that are measured."""
    parts = {
        "weights": plan.weights + plan.reference,
        "gradients": plan.gradients + plan.buckets,
        "AdamW moments": plan.optimizer_states,
    }
    return {**parts, _PASSING: plan.training - sum(parts.values())}
