"""Which tasks an epoch has: a function of seed and epoch alone, so that a resumed run goes on with
the tasks that it would have had."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from mempo.data.turns import Turns
from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Task


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
