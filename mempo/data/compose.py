"""Several questions in one task, as MEM1 composes them (specification section 11)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.runtime.names import join_names, split_names
from mempo.trajectory import Task

_JOINER = "+"
_ANSWERS = ";"

UNWINNABLE: Final = 'hold ";" in a gold and were left out of tasks of several questions'
"""What is told of such rows."""


def winnable(tasks: Sequence[Task], n: int, told: Told) -> list[Task]:
    """The rows that can stand in a task of several objectives, ``n`` rows to a task.

    Its answers are written with ``;`` between them: a gold that holds one could never be given, and
    would shift the answers after it. ``told`` takes down what is left out.
    """
    kept = []
    for task in tasks:
        golds = (gold for objective in task.objectives for gold in objective.golds)
        if (n > 1 or len(task.objectives) > 1) and any(_ANSWERS in gold for gold in golds):
            told.add(UNWINNABLE, task.id)
        else:
            kept.append(task)
    return kept


def compose_objectives(
    tasks: Sequence[Task], n: int, seed: int, setting: str = "data.objectives"
) -> list[Task]:
    """Tasks of ``n`` objectives each, from rows of one objective.

    The rows are shuffled with ``seed``, and each is used at most once; the last
    ``len(tasks) % n`` rows of the shuffle are left over and dropped. ``metadata["rows"]`` holds
    the ids of the rows used and ``metadata["rows_dropped"]`` how many were left over. ``n`` = 1
    keeps tasks and order, and rows of several objectives as they are. A task's id is its rows' ids
    with ``+`` between them; ``+`` and ``%`` in an id are escaped, so that ``row_ids`` reads
    the rows back.

    Raises ``DataError``, which calls the number ``setting``, when there are fewer than ``n`` rows,
    and ``ValueError`` for rows with several objectives or of different corpora.
    """
    if n < 1:
        raise ValueError(f"n={n}: a task needs at least one objective")
    if n > 1 and any(len(task.objectives) != 1 for task in tasks):
        raise ValueError("only rows with exactly one objective can be composed")
    if len({task.corpus for task in tasks}) > 1:
        raise ValueError("rows that search different corpora cannot be composed into one task")
    if len(tasks) < n:
        raise DataError(
            f"{setting}={n} needs at least {n} questions and there are {len(tasks)}: lower it, or "
            "give more questions"
        )
    order = list(range(len(tasks)))
    if n > 1:
        random.Random(f"compose/{seed}/{n}").shuffle(order)
    chosen = [tasks[index] for index in order[: len(tasks) - len(tasks) % n]]
    return [
        composed_task(chosen[start : start + n], len(tasks) % n)
        for start in range(0, len(chosen), n)
    ]


def row_ids(task_id: str) -> list[str]:
    """The ids of the rows of which a task of ``compose_objectives`` is made."""
    return split_names(_JOINER, task_id)


def composed_task(rows: Sequence[Task], dropped: int) -> Task:
    """One task of all ``rows``, which search one corpus. Where their sources differ, it has all of
    them, sorted, with ``+`` between them. ``dropped`` rows were left over."""
    return Task(
        id=join_names(_JOINER, (row.id for row in rows)),
        objectives=tuple(objective for row in rows for objective in row.objectives),
        source=_JOINER.join(sorted({row.source for row in rows})),
        corpus=rows[0].corpus,
        metadata={"rows": [row.id for row in rows], "rows_dropped": dropped},
    )
