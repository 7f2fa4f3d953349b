"""Tasks from a local JSON-lines file: ``question``, ``answer`` and, if wanted, ``id``.

The lines are read here and not by the ``datasets`` package, whose JSON reader does not say which
line a fault is on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mempo.runtime.rows import DataError, identifier, numbered_lines, parse_object, required_text
from mempo.trajectory import Objective, Task

__all__ = ["DataError", "load_local_tasks", "split_heldout"]


def load_local_tasks(
    path: str | Path, corpus: str = "local", skip_bad_rows: bool = False
) -> tuple[list[Task], int]:
    """The file's tasks, one objective each, and the number of rows that were skipped.

    A row without ``id`` is named after its file and line. Raises ``DataError`` that names file,
    line and remedy: a line that is blank or not JSON, a missing question, no gold answer or a
    blank one, an id used twice. With ``skip_bad_rows`` such rows are left out and counted. A file
    without any usable row is always an error.
    """
    path = Path(path)
    tasks: list[Task] = []
    first_line: dict[str, int] = {}
    skipped = 0
    for number, line in numbered_lines(path):
        place = f"{path}:{number}"
        try:
            row = parse_object(line, place)
            task = _task(row, f"{path.stem}-{number}", corpus, place)
            if task.id in first_line:
                raise DataError(
                    f'{place}: the id "{task.id}" stands already on line '
                    f"{first_line[task.id]}: give every question its own"
                )
        except DataError:
            if not skip_bad_rows:
                raise
            skipped += 1
            continue
        first_line[task.id] = number
        tasks.append(task)
    if not tasks:
        raise DataError(
            f"{path}: none of its {skipped} rows can be used: see them without data.skip_bad_rows"
        )
    return tasks, skipped


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
        by_question.setdefault(_plain(task.question), []).append(task)
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
        [task for task in tasks if _plain(task.question) not in heldout],
        [task for task in tasks if _plain(task.question) in heldout],
    )


def _task(row: Mapping[str, Any], default_id: str, corpus: str, place: str) -> Task:
    return Task(
        id=identifier(row, place) or default_id,
        objectives=(Objective(required_text(row, "question", place).strip(), _golds(row, place)),),
        source="local",
        corpus=corpus,
    )


def _golds(row: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """The gold answers without their outer white space, each once."""
    if row.get("answer") is None:
        raise DataError(f'{place}: the field "answer" is missing: add the gold answer')
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    if not answers:
        raise DataError(f'{place}: the field "answer" is an empty list: add a gold answer')
    for answer in answers:
        if not isinstance(answer, str):
            raise DataError(
                f'{place}: the field "answer" must be a text or a list of texts, it holds '
                f"{answer!r}: put it in quotes"
            )
        if not answer.strip():
            raise DataError(f'{place}: the field "answer" holds a blank answer: remove it')
    return tuple(dict.fromkeys(answer.strip() for answer in answers))


def _plain(question: str) -> str:
    return " ".join(question.casefold().split())
