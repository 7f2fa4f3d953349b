"""A check: a command, the figure that it prints, its limit, and what to do beyond it.

Every check is a process of its own, so that one that fails leaves the others alone. Commands print
a line of JSON last; ``figure`` names one of its numbers. Checks with the same command share a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Needs = Literal["nothing", "gpu", "two", "more"]
"""``two``: two devices; without any GPU two processes on the CPU. ``more``: more than two GPUs."""

RUN: Final = "{run}"
"""In a command: a new folder, whose ``metrics.jsonl`` has the figure in its last line."""


@dataclass(frozen=True)
class Check:
    """``limit`` is the largest figure that passes, or with ``least`` the smallest; ``None``: the
    figure is told and not judged; ``also`` names others to tell. ``quick``: part of ``--quick``.
    ``on_cpu``: words that the command needs where there is no GPU. ``kills``: a process of the run
    is killed, and the figure is the seconds until all have ended."""

    name: str
    shows: str
    command: Sequence[str]
    figure: str
    limit: float | None
    remedy: str
    needs: Needs = "nothing"
    least: bool = False
    quick: bool = False
    kills: bool = False
    also: Sequence[str] = ()
    on_cpu: Sequence[str] = ()
