"""MuSiQue: multi-hop questions with their paragraphs (specification section 11).

Read are these variants:

- id: ``id``; golds: ``answer`` and then ``answer_aliases`` (a list, which may be empty)
- passages, also the corpus where ``data.corpus`` is not given: ``paragraphs`` as objects
  ``{"title", "paragraph_text"}`` (``text`` in HippoRAG's copies), as one object of lists,
  or either as JSON text. Rows without ``paragraphs`` are read as well and then need
  ``data.corpus``.
- titles of the passages that answer the question, for ``mempo.evaluation.recall``: those of
  paragraphs with ``is_supporting``
- ``answerable``: rows that say ``false`` (half of the "full" files, under the ids of the other
  half) are errors, since their passages do not hold the answer
"""

from __future__ import annotations

from mempo.data.formats.passages import marked_titles, titled_passages
from mempo.data.formats.row import Options, QuestionRow
from mempo.retrieval.base import Passage
from mempo.trajectory import Task


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    if row.fields.get("answerable") is False:
        raise row.fault(
            'the question is not answerable ("answerable" is false): take the files of answerable '
            "questions, or leave such rows out with data.skip_bad_rows=true"
        )
    return row.task(
        row.identifier("id"),
        row.text("question"),
        row.golds(options, "answer", "answer_aliases"),
        "musique",
    )


def passages(row: QuestionRow, options: Options) -> list[Passage]:
    """The passages of ``paragraphs``. Raises ``DataError`` for a shape that is not read."""
    return titled_passages(row, "paragraphs", ("paragraph_text", "text"), options.told)


def evidence(row: QuestionRow) -> list[str]:
    """The titles of the paragraphs marked ``is_supporting``; none where none is. Raises
    ``DataError`` for a shape that is not read."""
    return marked_titles(row, "paragraphs", "is_supporting")
