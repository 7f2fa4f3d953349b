"""Which trajectories a page holds when a run has more than a page can carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mempo.records.trajectory_lines import TrajectoryLine

NEWEST_PER_EXTREME: Final = 6
"""After a best and a worst one come this many of the newest."""


def by_importance(trajectories: Sequence[TrajectoryLine]) -> list[int]:
    """All positions in ``trajectories``, the most important first.

    Of every eight one is the best by memory reward that is left, one the worst, and six are the
    next ones of the newest epochs (within an epoch as they stand in the file). So every beginning
    of the list is a fair choice.
    """
    scored = [
        (reward, index)
        for index, one in enumerate(trajectories)
        if (reward := one.memory_reward) is not None
    ]
    worst = [index for _, index in sorted(scored)]
    newest = sorted(range(len(trajectories)), key=lambda i: (-trajectories[i].epoch, i))
    taken: set[int] = set()
    best_left, worst_left, newest_left = iter(worst[::-1]), iter(worst), iter(newest)
    order: list[int] = []
    while len(order) < len(trajectories):
        for source, count in ((best_left, 1), (worst_left, 1), (newest_left, NEWEST_PER_EXTREME)):
            order += _take(source, count, taken)
    return order


def within(
    order: Sequence[int], limit: int | None, bytes_of: Callable[[int], int], budget: int | None
) -> list[int]:
    """The first positions of ``order``, in ascending order: at most ``limit``, and as long as
    their ``bytes_of`` stay within ``budget`` together (``None``: no such bounds).
    At least one, where there is any."""
    chosen: list[int] = []
    used = 0
    for index in order[:limit]:
        used += bytes_of(index)
        if chosen and budget is not None and used > budget:
            break
        chosen.append(index)
    return sorted(chosen)


def _take(source: Iterator[int], count: int, taken: set[int]) -> list[int]:
    found: list[int] = []
    for index in source:
        if index not in taken:
            taken.add(index)
            found.append(index)
        if len(found) == count:
            break
    return found
