"""The sources that figures name: where tasks come from, a bounded number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from mempo.config import OTHER_SOURCES

MOST_SOURCES: Final = 16
"""So many have figures of their own; a file may name a source of its own in every row."""


def named_sources(sources: Iterable[str]) -> tuple[str, ...]:
    """The sources with figures of their own, sorted: those of most tasks, up to ``MOST_SOURCES``,
    and ``OTHER_SOURCES`` behind them where there are more. None where all tasks have one source,
    whose figures are those of all."""
    counts = Counter(sources)
    if len(counts) < 2:
        return ()
    most = sorted(counts, key=lambda source: (-counts[source], source))[:MOST_SOURCES]
    return (*sorted(most), *((OTHER_SOURCES,) if len(counts) > MOST_SOURCES else ()))


def source_name(source: str, named: Sequence[str]) -> str:
    """What figures call a task's source."""
    return source if source in named else OTHER_SOURCES
