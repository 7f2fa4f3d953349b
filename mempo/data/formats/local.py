"""The project's own format: JSON lines of questions, or a table (specification section 11).

Read is this:

- question: ``question``
- golds: ``answer``, a text or a list of texts; a list written as text is read as one
- id: ``id``, else the file's name and the line's number

The lines are read here and not by the ``datasets`` package, which takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Iterator

from mempo.config import require_path
from mempo.data.formats.row import Options, QuestionRow, QuestionSource
from mempo.row_files.rows import DataError
from mempo.row_files.rows_of import file_rows
from mempo.trajectory import Task


def read_lines(source: QuestionSource) -> Iterator[QuestionRow | DataError]:
    """The rows of a single file. Raises ``ConfigError`` that names the setting where there is no
    such file, and ``DataError`` for a file that cannot be read or holds nothing."""
    for row in file_rows(require_path(source.place, source.setting)):
        if isinstance(row, DataError):
            yield row
        else:
            yield QuestionRow(row.fields, row.place, row.default_id, row.named)


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    return row.task(row.identifier("id"), row.text("question"), _golds(row, options), "local")


def _golds(row: QuestionRow, options: Options) -> tuple[str, ...]:
    """The gold answers without their outer white space, each once."""
    value = row.fields.get("answer")
    if value is None:
        raise row.fault('the field "answer" is missing: add the gold answer')
    answers = row.listed("answer", value, options.told)
    if not answers:
        raise row.fault('the field "answer" is an empty list: add a gold answer')
    for answer in answers:
        if not isinstance(answer, str):
            raise row.fault(
                'the field "answer" must be a text or a list of texts, it holds '
                f"{answer!r}: put it in quotes"
            )
        if not answer.strip():
            raise row.fault('the field "answer" holds a blank answer: remove it')
    return tuple(dict.fromkeys(answer.strip() for answer in answers))
