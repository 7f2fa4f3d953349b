"""The best passages for a query, from posting lists sorted by passage.

A score is a sum over the query's words, so lists need not be read to the end: shortest first, and
once the words that are left could not lift an unseen passage into the ``k`` best, only passages
seen so far are looked up in them (MaxScore of Turtle and Flood, 1995). The result is exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Scores are added in float32 on the way; candidates are kept with this much room to spare.
_ROOM: Final = 1e-4

# So many entries of a list are asked for their k-th best score, a bound for that of all.
_SAMPLE: Final = 16_384

# Looking a passage up in a list costs as much as reading so many of its entries.
_LOOKUP: Final = 50


@dataclass(frozen=True)
class Postings:
    """Passages of one part by word.

    ``indptr`` int64 [words + 1], ``indices`` int32 and ``scores`` float32 [entries], passages
    ascending within a word; ``upper`` float32 [words]: the largest score of each.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    upper: NDArray[np.float32]
    passages: int
    negative: bool = False
    """Whether any score is below zero: then every list is read to its end."""

    def best(
        self,
        weights: Mapping[int, int],
        k: int,
        floor: float,
        buffer: NDArray[np.float32],
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The at most ``k`` best passages that hold a word, best first, and their scores.

        Equal scores keep the order of passages. ``weights`` says how often each word stands in
        the query. Passages that cannot reach ``floor`` (``-inf`` for none) may be left out.
        ``buffer`` is float32 [at least passages], all zero before and after.
        """
        lists = self._lists(weights)
        if not lists:
            return np.empty(0, np.int32), np.empty(0)
        add_up = accumulator()
        entries = [len(one.indices) for one in lists]
        rest = [sum(one.upper for one in lists[number:]) for number in range(len(lists) + 1)]
        bound, read = floor, len(lists)
        for number, one in enumerate(lists, start=1):
            add_up(buffer, one.indices, one.scores, one.weight)
            if self.negative or _LOOKUP * sum(entries[:number]) > sum(entries[number:]):
                continue  # reading on costs no more than looking the passages up
            bound = max(bound, _kth_largest(buffer[one.indices[:_SAMPLE]], k))
            if rest[number] < bound - _room(bound):
                read = number
                break
        candidates, sums = self._candidates(lists[:read], k, bound, rest[read], buffer)
        for number, one in enumerate(lists[read:], start=read + 1):
            sums += one.weight * one.lookup(candidates)
            bound = max(bound, _kth_largest(sums, k))
            enough = sums >= bound - rest[number] - _room(bound)
            candidates, sums = candidates[enough], sums[enough]
        scores = np.zeros(len(candidates))
        for one in lists:  # again, since sums in float32 depend on the order
            scores += one.weight * one.lookup(candidates)
        order = np.lexsort((candidates, -scores))[:k]
        return candidates[order], scores[order]

    def _candidates(
        self,
        lists: list[_List],
        k: int,
        bound: float,
        rest: float,
        buffer: NDArray[np.float32],
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The passages of ``lists`` that ``rest`` more could lift to the ``k`` best, ascending, and
        their sums over ``lists``, which stand in ``buffer``; it is all zero again afterwards."""
        for one in [one for one in lists if len(one.indices) >= k][:3]:  # the rarest say most
            bound = max(bound, _kth_largest(buffer[one.indices[:_SAMPLE]], k))
        least = bound - rest - _room(bound)
        every = buffer[: self.passages]
        if least > 0 and 8 * sum(len(one.indices) for one in lists) > self.passages:
            candidates = np.flatnonzero(every >= np.float32(least)).astype(np.int32)
            sums = every[candidates]
            every.fill(0.0)
        else:
            enough = [one.indices[every[one.indices] >= least] for one in lists]
            candidates = np.unique(np.concatenate(enough))
            sums = every[candidates]
            for one in lists:
                every[one.indices] = 0.0
        bound = max(bound, _kth_largest(sums, k))
        kept = sums >= bound - rest - _room(bound)
        return candidates[kept], sums[kept].astype(np.float64)

    def _lists(self, weights: Mapping[int, int]) -> list[_List]:
        """The posting lists of the query's words, shortest first."""
        found = []
        for word, weight in weights.items():
            if word + 1 < len(self.indptr):
                start, end = self.indptr[word], self.indptr[word + 1]
                if start < end:
                    upper = weight * max(float(self.upper[word]), 0.0)
                    found.append(
                        _List(self.indices[start:end], self.scores[start:end], weight, upper)
                    )
        return sorted(found, key=lambda one: len(one.indices))


@dataclass(frozen=True)
class _List:
    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    weight: int
    upper: float

    def lookup(self, passages: NDArray[np.int32]) -> NDArray[np.float64]:
        """The word's score in each of ``passages``, 0 where it does not stand."""
        places = np.searchsorted(self.indices, passages)
        places[places == len(self.indices)] = 0
        found = self.scores[places].astype(np.float64)
        found[self.indices[places] != passages] = 0.0
        return found


def _kth_largest(values: NDArray[Any], k: int) -> float:
    """The k-th largest value, or ``-inf`` when there are fewer."""
    if len(values) < k:
        return float("-inf")
    return float(np.partition(values, len(values) - k)[len(values) - k])


def _room(bound: float) -> float:
    return _ROOM * abs(bound) if np.isfinite(bound) else 0.0


@functools.cache
def accumulator() -> Callable[..., None]:
    """``_add_up`` as machine code that does not hold the interpreter's lock, compiled at the first
    call of this function. numba is imported here, since that takes most of a second."""
    import numba

    compiled: Callable[..., None] = numba.njit(nogil=True)(_add_up)
    empty = np.empty(0, np.int32), np.empty(0, np.float32)
    for array in empty:  # as memory-mapped arrays are
        array.flags.writeable = False
    compiled(np.empty(0, np.float32), *empty, 1)
    return compiled


def _add_up(
    buffer: NDArray[np.float32],
    indices: NDArray[np.int32],
    scores: NDArray[np.float32],
    weight: int,
) -> None:
    """``buffer[indices] += weight * scores``, for indices that all differ."""
    for place in range(len(indices)):
        buffer[indices[place]] += np.float32(weight * scores[place])
