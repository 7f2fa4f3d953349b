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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_check.checks import RUN, Check

ROOT: Final = Path(__file__).resolve().parent.parent
LONGEST_SECONDS: Final = 1800.0
_SHOWN: Final = 3000
_BAR: Final = re.compile(r"\d+%\|.*\d+/\d+")
"""A line of somebody's progress bar."""


@dataclass(frozen=True)
class Outcome:
    """``state``: passed, failed, told (no limit) or left out. ``said``: why it failed or was left
    out; the end of what the command printed."""

    name: str
    shows: str
    state: str
    figure: float | None = None
    limit: float | None = None
    seconds: float = 0.0
    command: str = ""
    said: str = ""
    remedy: str = ""


def run_check(check: Check, gpus: int) -> Outcome:
    """What comes of a check on a machine with ``gpus`` GPUs."""
    words = [*check.command, *(["trainer.accelerator=cpu"] if check.needs == "two" else [])]
    words = words if gpus == 0 else list(check.command)
    readable = "python " + " ".join(words)
    why = ""
    if check.needs == "gpu" and gpus == 0:
        why = "it needs a GPU, and there is none"
    if check.needs == "two" and gpus == 1:
        why = "it needs two GPUs, and there is one"
    if why:
        return Outcome(check.name, check.shows, "left out", command=readable, said=why)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *(word.replace(RUN, folder) for word in words)]
        figure, said = (_killed if check.kills else _measured)(check, command, Path(folder))
    seconds = round(time.monotonic() - begun, 1)
    state, said = judged(check, figure, said)
    remedy = check.remedy if state == "failed" else ""
    return Outcome(
        check.name, check.shows, state, figure, check.limit, seconds, readable, said, remedy
    )


def judged(check: Check, figure: float | None, said: str) -> tuple[str, str]:
    """The state, and what is worth showing of the output."""
    if figure is None or figure != figure:
        return "failed", said or f"there is no {check.figure}"
    if check.limit is None:
        return "told", ""
    good = figure >= check.limit if check.least else figure <= check.limit
    return ("passed", "") if good else ("failed", said)


def _measured(check: Check, command: list[str], folder: Path) -> tuple[float | None, str]:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None, f"it did not end within {LONGEST_SECONDS / 60:g} minutes"
    printed = (done.stdout + done.stderr).splitlines()
    said = "\n".join(line for line in printed if not _BAR.search(line))[-_SHOWN:]
    if done.returncode:
        return None, f"exit status {done.returncode}\n{said}"
    metrics = folder / "metrics.jsonl"
    source = metrics.read_text() if metrics.exists() else done.stdout
    return _number(last_line(source).get(check.figure)), said


def last_line(text: str) -> dict[str, Any]:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _killed(check: Check, command: list[str], folder: Path) -> tuple[float | None, str]:
    """Seconds from the end of a process of a run until its launcher has ended."""
    launcher = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + LONGEST_SECONDS
        while not (folder / "metrics.jsonl").exists():
            if launcher.poll() is not None or time.monotonic() > deadline:
                return None, f"the run ended by itself, with status {launcher.poll()}"
            time.sleep(0.5)
        (second, *_) = further_processes(launcher.pid)
        os.kill(second, signal.SIGKILL)
        begun = time.monotonic()
        try:
            launcher.wait(timeout=2 * (check.limit or 60.0))
        except subprocess.TimeoutExpired:
            return None, "the first process did not end"
        return time.monotonic() - begun, ""
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
