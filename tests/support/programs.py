"""Running the project's programs in tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mempo.runtime.checkpoint_files import last_checkpoint

ROOT = Path(__file__).resolve().parents[2]
PROGRAM_SECONDS = 600
_ACTIVATED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
"""As in a shell where the environment is activated: ``python`` is this interpreter."""


def run_program(program: str, *arguments: str, expect: int = 0, folder: Path = ROOT) -> str:
    """Runs a program of the project (or a module: ``-m``) in ``folder`` and returns its output,
    standard output last."""
    done = subprocess.run(
        [sys.executable, program, *arguments],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        cwd=folder,
        env={**os.environ, "WANDB_MODE": "offline", "PATH": _ACTIVATED},
    )
    assert done.returncode == expect, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stderr + done.stdout


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_epoch(metrics: Path, process: subprocess.Popen[Any]) -> None:
    """Until the first epoch's line is written."""
    deadline = time.monotonic() + PROGRAM_SECONDS / 2
    while not metrics.exists() or not metrics.read_bytes():
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < deadline
        time.sleep(0.5)


def wait_for_checkpoint(run_dir: Path, process: subprocess.Popen[Any]) -> None:
    """Until the first checkpoint is whole, which is behind the first epoch's line."""
    deadline = time.monotonic() + PROGRAM_SECONDS / 2
    while last_checkpoint(run_dir) is None:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < deadline
        time.sleep(0.5)


def interruptible() -> None:
    """For ``preexec_fn``: a process started in the background may ignore Ctrl-C, and its children
    with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
