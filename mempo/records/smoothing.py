"""When and how the curves of a run are smoothed, in every picture alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SMOOTHED_FROM: Final = 20
"""Curves of this many epochs get a running mean, over ``WINDOW`` epochs."""
WINDOW: Final = 9


def running_mean(values: Sequence[float | None], window: int = WINDOW) -> list[float | None]:
    """The mean of the ``window`` values around each, fewer at the ends; ``None`` stays ``None``."""
    return [
        None if value is None else _mean_around(values, index, window // 2)
        for index, value in enumerate(values)
    ]


def running_mean_by_epoch(points: dict[int, float], window: int = WINDOW) -> dict[int, float]:
    """The same over the epochs that have a value."""
    epochs = sorted(points)
    values = [points[epoch] for epoch in epochs]
    return {e: _mean_around(values, index, window // 2) for index, e in enumerate(epochs)}


def _mean_around(values: Sequence[float | None], index: int, half: int) -> float:
    near = [v for v in values[max(0, index - half) : index + half + 1] if v is not None]
    return sum(near) / len(near)
