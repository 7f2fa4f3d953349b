"""ASearcher: JSON lines of questions with augmented answers (specification section 11).

Read are these variants:

- question: ``question``
- golds: ``answer``, a text, a number, a list of them, or one text with ``data.answer_separator``;
  then those of ``aug_answer`` in the same forms (null, an empty text and an empty list add none)
- id: ``id``, else ``qid``, else ``idx``, else the file's name and the row's number
- source: ``source`` or ``dataset``
"""

from __future__ import annotations

from mempo.data.formats.row import Options, QuestionRow
from mempo.trajectory import Task


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    more = [] if row.fields.get("aug_answer") == "" else ["aug_answer"]
    return row.task(
        row.identifier("id", "qid", "idx"),
        row.text("question"),
        row.golds(options, "answer", *more),
        row.optional_text("source", "dataset") or "asearcher",
    )
