"""Which questions are held out where no file names them (specification, section 11)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mempo.row_files.rows import DataError
from mempo.trajectory import Task


def split_heldout(
    tasks: Sequence[Task], fraction: float, seed: int
) -> tuple[list[Task], list[Task]]:
    """Splits tasks into training and held-out ones, each in their old order.

    Rows that ask the same question stay on one side. Both sides get at least one task; raises
    ``DataError`` when there are fewer than two different questions.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction={fraction} must lie between 0 and 1")
    by_question: dict[str, list[Task]] = {}
    for task in tasks:
        by_question.setdefault(plain_question(task.question), []).append(task)
    if len(by_question) < 2:
        raise DataError(
            f"{len(by_question)} different question(s) cannot be split into training and held-out "
            "ones: give more questions, or a file of their own in data.heldout_questions"
        )
    order = list(by_question)
    random.Random(f"heldout/{seed}").shuffle(order)
    count = min(max(1, round(fraction * len(order))), len(order) - 1)
    heldout = set(order[:count])
    return (
        [task for task in tasks if plain_question(task.question) not in heldout],
        [task for task in tasks if plain_question(task.question) in heldout],
    )


def plain_question(question: str) -> str:
    """What two rows share that ask the same question."""
    return " ".join(question.casefold().split())
