"""Progress of rollout, scoring and updates: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

QUIET_SECONDS = 10.0
"""Least seconds between two lines where there is no terminal."""


class ProgressBar(Protocol):
    """What a loop tells about its progress. Call it from one thread."""

    def advance(self, steps: int = 1, tokens: int = 0) -> None:
        """``steps`` more are done, and ``tokens`` more tokens were handled on the way."""


@contextmanager
def progress_bar(
    description: str, total: int, *, enabled: bool = True, stream: TextIO | None = None
) -> Iterator[ProgressBar]:
    """Shows how many of ``total`` steps are done, with tokens per second where tokens are told.

    On a terminal a bar that vanishes at the end; elsewhere at most one line in ten seconds.
    ``stream`` is standard error unless given. With ``enabled=False`` (other ranks than 0, or
    ``callbacks.progress_bars=false``) nothing is shown.
    """
    stream = sys.stderr if stream is None else stream
    if not enabled:
        yield _Silent()
    elif stream.isatty():
        with _rich_progress(stream) as progress:
            yield _RichBar(progress, description, total)
    else:
        yield QuietProgress(description, total, stream)


def _rich_progress(stream: TextIO) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )


class _Silent:
    def advance(self, steps: int = 1, tokens: int = 0) -> None:
        return None


class _RichBar:
    def __init__(self, progress: Progress, description: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=total, rate="")
        self._tokens = 0
        self._start = time.monotonic()

    def advance(self, steps: int = 1, tokens: int = 0) -> None:
        self._tokens += tokens
        rate = _rate(self._tokens, time.monotonic() - self._start)
        self._progress.update(self._task, advance=steps, rate=rate)


class QuietProgress:
    """Progress where there is no terminal; ``clock`` gives seconds."""

    def __init__(
        self,
        description: str,
        total: int,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._description = description
        self._total = total
        self._stream = stream
        self._clock = clock
        self._start = self._last = clock()
        self._done = 0
        self._tokens = 0

    def advance(self, steps: int = 1, tokens: int = 0) -> None:
        """Counts, and prints a line when the last one is ten seconds old."""
        self._done += steps
        self._tokens += tokens
        now = self._clock()
        if now - self._last < QUIET_SECONDS:
            return
        self._last = now
        rate = _rate(self._tokens, now - self._start)
        line = f"{self._description}: {self._done}/{self._total}{', ' + rate if rate else ''}"
        print(line, file=self._stream, flush=True)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tokens/s" if tokens and seconds > 0 else ""
