"""Seconds and peak memory of the phases of an epoch: sync, rollout, scoring, update."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

GIB = float(2**30)
_STATUS = Path("/proc/self/status")


class Phases:
    """What each phase of the current epoch took on this process.

    ``seconds`` by phase, and ``peak_gib``: the most memory in GiB that was in use during it, of the
    GPU (what torch has allocated there, the engine's included unless it has a pool of its own), or
    of this process where there is no GPU; without an entry where it cannot be told.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak_gib: dict[str, float] = {}
        self._started: dict[str, float] = {}

    def clear(self) -> None:
        """Forgets the last epoch."""
        self.seconds.clear()
        self.peak_gib.clear()

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Measures the block as the phase ``name``; a block that raises leaves no entry."""
        self.start(name)
        yield
        self.stop(name)

    def start(self, name: str) -> None:
        """Begins a phase whose end is elsewhere."""
        reset_peak()
        self._started[name] = time.monotonic()

    def stop(self, name: str) -> None:
        """Ends the phase."""
        self.seconds[name] = time.monotonic() - self._started.pop(name)
        peak = peak_bytes()
        if peak is not None:
            self.peak_gib[name] = peak / GIB


def reset_peak() -> bool:
    """Sets the peak to what is in use now; False where there is no way to."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """The most bytes in use since ``reset_peak``, or None where it cannot be told."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return _status_bytes("VmHWM")


def bytes_in_use() -> int | None:
    """The bytes in use now, or None where it cannot be told."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int | None:
    """A field of Linux's own account of this process."""
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None
