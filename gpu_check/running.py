"""Runs a check and judges its figure."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpu_check.check import RUN, Check

ROOT: Final = Path(__file__).resolve().parent.parent
LONGEST_SECONDS: Final = 1800.0
_SHOWN: Final = 3000
_BAR: Final = re.compile(r"\d+%\|.*\d+/\d+")
"""A line of somebody's progress bar."""


@dataclass(frozen=True)
class Outcome:
    """``state``: passed, failed, told (no limit) or left out. ``also``: what else was asked of the
    command. ``said``: why it failed or was left out; the end of what the command printed."""

    name: str
    shows: str
    state: str
    figure: float | None = None
    limit: float | None = None
    also: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    command: str = ""
    said: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Measured:
    """What a command printed: its figures, none where it failed, and the end of its words."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


def run_check(check: Check, gpus: int, seen: dict[str, Measured] | None = None) -> Outcome:
    """What comes of a check on a machine with ``gpus`` GPUs. ``seen`` has what commands gave in
    checks before, so that several figures of one cost it once."""
    words = [*check.command, *(check.on_cpu if gpus == 0 else ())]
    readable = "python " + " ".join(words)
    if why := left_out(check, gpus):
        return Outcome(check.name, check.shows, "left out", command=readable, said=why)
    begun = time.monotonic()
    seen = {} if seen is None else seen
    if check.kills or readable not in seen:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, *(word.replace(RUN, folder) for word in words)]
            seen[readable] = (_killed if check.kills else _measured)(check, command, Path(folder))
    found = seen[readable]
    figure = _number(found.figures.get(check.figure))
    state, said = judged(check, figure, found.said)
    return Outcome(
        check.name,
        check.shows,
        state,
        figure,
        check.limit,
        {name: found.figures[name] for name in check.also if name in found.figures},
        round(time.monotonic() - begun, 1),
        readable,
        said,
        check.remedy if state == "failed" else "",
    )


def left_out(check: Check, gpus: int) -> str:
    """Why a check cannot be run here; nothing where it can."""
    has = {0: "there is none", 1: "there is one"}.get(gpus, f"there are {gpus}")
    if check.needs == "gpu" and gpus == 0:
        return f"it needs a GPU, and {has}"
    if check.needs == "two" and gpus == 1:
        return f"it needs two GPUs, and {has}"
    if check.needs == "more" and gpus <= 2:
        return f"it needs more than two GPUs, and {has}"
    return ""


def judged(check: Check, figure: float | None, said: str) -> tuple[str, str]:
    """The state, and what is worth showing of the output."""
    if figure is None or figure != figure:
        return "failed", said or f"there is no {check.figure}"
    if check.limit is None:
        return "told", ""
    good = figure >= check.limit if check.least else figure <= check.limit
    return ("passed", "") if good else ("failed", said)


def _measured(check: Check, command: list[str], folder: Path) -> Measured:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Measured(said=f"it did not end within {LONGEST_SECONDS / 60:g} minutes")
    printed = (done.stdout + done.stderr).splitlines()
    said = "\n".join(line for line in printed if not _BAR.search(line))[-_SHOWN:]
    if done.returncode:
        return Measured(said=f"exit status {done.returncode}\n{said}")
    metrics = folder / "metrics.jsonl"
    return Measured(last_line(metrics.read_text() if metrics.exists() else done.stdout), said)


def last_line(text: str) -> dict[str, Any]:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _killed(check: Check, command: list[str], folder: Path) -> Measured:
    """Seconds from the end of a process of a run until its launcher has ended."""
    launcher = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + LONGEST_SECONDS
        while not (folder / "metrics.jsonl").exists():
            if launcher.poll() is not None or time.monotonic() > deadline:
                return Measured(said=f"the run ended by itself, with status {launcher.poll()}")
            time.sleep(0.5)
        (second, *_) = further_processes(launcher.pid)
        os.kill(second, signal.SIGKILL)
        begun = time.monotonic()
        try:
            launcher.wait(timeout=2 * (check.limit or 60.0))
        except subprocess.TimeoutExpired:
            return Measured(said="the first process did not end")
        return Measured({check.figure: time.monotonic() - begun})
    finally:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()


def further_processes(launcher: int) -> list[int]:
    """The processes that the launcher of a run started for its further ranks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == launcher and b"LOCAL_RANK=1" in environment:
            found.append(int(folder.name))
    return found
