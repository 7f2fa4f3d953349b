"""Which tasks an epoch has: a function of seed and epoch alone, so that a resumed run goes on with
the tasks that it would have had; and whose turn it is where sources have shares."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Task


class Turns:
    """Gives places to names by ``shares``, which are relative to their sum.

    Each place goes to the name that is owed most. However many places were given out, no name is
    ahead of its share by a whole place, and each has exactly its share whenever that is a whole
    number for all of them (where every name could take its turn). Shares are taken as they are
    written (0.1 is a tenth), and the sums are whole numbers: the same shares give the same turns
    everywhere.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        exact = {name: Fraction(str(share)) for name, share in shares.items()}
        unit = math.lcm(*(share.denominator for share in exact.values()))
        self._shares = {name: int(share * unit) for name, share in exact.items()}
        self._owed = dict.fromkeys(self._shares, 0)

    def next(self, among: Collection[str]) -> str:
        """The next place's name, one of those in ``among`` (at least one); of several that are
        owed as much, the first one of the shares."""
        for name, share in self._shares.items():
            self._owed[name] += share
        chosen = max(
            (name for name in self._shares if name in among), key=lambda name: self._owed[name]
        )
        self._owed[chosen] -= sum(self._shares.values())
        return chosen


def epoch_tasks(
    tasks: Sequence[Task],
    shares: Mapping[str, float] | None,
    count: int,
    epoch: int,
    seed: int,
) -> list[Task]:
    """``count`` tasks, none twice.

    Without ``shares`` each pass over the tasks is shuffled anew, and what does not fill an epoch
    waits for another pass. With shares (by ``Task.source``, relative to their sum) the sources take
    turns (``Turns``), each with passes of its own. What is rounded in one epoch is made good in the
    next.
    """
    if shares is None:
        passes, offset = divmod(epoch, len(tasks) // count)
        order = _shuffled(tasks, seed, "tasks", passes)
        return order[offset * count : (offset + 1) * count]
    by_source: dict[str, list[Task]] = {source: [] for source in shares}
    for task in tasks:
        by_source[task.source].append(task)
    turns = Turns(shares)
    counts: Counter[str] = Counter()
    passes_of, used = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0)
    for _ in range(epoch + 1):
        for source, taken in counts.items():
            used[source] += taken
        counts = Counter()
        for _ in range(count):
            counts[turns.next([one for one in shares if counts[one] < len(by_source[one])])] += 1
        for source, wanted in counts.items():
            if used[source] + wanted > len(by_source[source]):
                passes_of[source], used[source] = passes_of[source] + 1, 0
    chosen: list[Task] = []
    for source, wanted in counts.items():
        order = _shuffled(by_source[source], seed, "tasks", source, passes_of[source])
        chosen += order[used[source] : used[source] + wanted]
    return _shuffled(chosen, seed, "epoch", epoch)


def _shuffled(tasks: Sequence[Task], *seed_parts: int | str) -> list[Task]:
    order = list(range(len(tasks)))
    random.Random(derive_seed(*seed_parts)).shuffle(order)
    return [tasks[index] for index in order]
