"""The processes of an evaluation on one machine: launched, watched, and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mempo.evaluation.shares import SHARE_VARIABLE, devices_of
from mempo.runtime.errors import MempoError
from mempo.runtime.program import hydra_value

_LOOK_SECONDS: Final = 0.5
_END_SECONDS: Final = 20.0
_SHOWN_LINES: Final = 40
STALLED_SECONDS: Final = 3600.0
"""Without a single new trajectory of any process for so long, an evaluation is given up."""


def run_processes(count: int, each: int, gpus: int, folder: Path, tick: Callable[[], int]) -> None:
    """Runs this program ``count`` times, each for its share, until all have ended well.

    ``each`` GPUs to a process, of ``gpus`` (0: on the CPU). ``tick`` is called meanwhile. Raises
    ``MempoError`` with what the first one that failed said; the others are ended then, as they are
    with this process.
    """
    logs = [folder / f"process-{index}.log" for index in range(count)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for index, log in enumerate(logs):
            running.append(_launch(index, count, log, folder, each, gpus))
        while any(one.poll() is None for one in running):
            _check(running, logs)
            tick()
            time.sleep(_LOOK_SECONDS)
        _check(running, logs)
        tick()
    finally:
        _end(running)
    for log in logs:
        log.unlink(missing_ok=True)


def wait_for_others(missing: Callable[[], int]) -> None:
    """Until the others' parts hold all: ``missing`` counts what they do not. Raises ``MempoError``
    when nothing has come for ``STALLED_SECONDS``."""
    left, since = missing(), time.monotonic()
    while left:
        time.sleep(_LOOK_SECONDS)
        before, left = left, missing()
        if left < before:
            since = time.monotonic()
        if time.monotonic() - since > STALLED_SECONDS:
            raise MempoError(
                f"{left} trajectories of the other processes did not come, none within "
                f"{STALLED_SECONDS / 60:g} minutes: their output says why; the same command goes on"
            )


def _launch(
    index: int, count: int, log: Path, folder: Path, each: int, gpus: int
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, SHARE_VARIABLE: f"{index}/{count}"}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = devices_of(index, each, gpus)
    with log.open("wb") as output:
        return subprocess.Popen(
            [*own_command(sys.orig_argv), f"run_dir={hydra_value(str(folder.absolute()))}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def own_command(words: Sequence[str]) -> list[str]:
    """This program's command line without the folder that it names."""
    return [sys.executable, *(word for word in words[1:] if not word.startswith("run_dir="))]


def _check(running: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> None:
    for index, (one, log) in enumerate(zip(running, logs, strict=True)):
        if one.poll() not in (None, 0):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            said = "\n".join(lines[-_SHOWN_LINES:])
            raise MempoError(
                f"process {index} of {len(running)} ended with status {one.returncode} and said\n"
                f"{said}\nWhat all of them finished is kept: the same command goes on"
            )


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for one in running:
        if one.poll() is None:
            one.terminate()
    deadline = time.monotonic() + _END_SECONDS
    for one in running:
        try:
            one.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
