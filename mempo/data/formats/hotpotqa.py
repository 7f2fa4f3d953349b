"""HotpotQA and 2WikiMultihopQA: questions with their passages (specification section 11).

Read are these variants:

- id: ``_id`` (the released JSON), else ``id`` (copies on the hub)
- golds: ``answer``, a text (or a list, or one text with ``data.answer_separator``), then those of
  ``answer_aliases`` or ``aliases`` where there are any, then what ``data.aliases``
  (2WikiMultihopQA's ``id_aliases.json``) holds for ``answer_id``
- passages, also the corpus where ``data.corpus`` is not given: ``context`` as pairs
  ``[title, [sentence, …]]``, as objects ``{"title", "sentences"}``, as one object of lists
  ``{"title": […], "sentences": [[…], …]}`` (``content`` in place of ``sentences`` too), or any of
  these as JSON text. Rows without ``context`` are read as well and then need ``data.corpus``.
- titles of the passages that answer the question, for ``mempo.evaluation.recall``:
  ``supporting_facts`` as pairs ``[title, sentence number]`` or as one object of lists, else
  ``titles``, a list
- source: ``dataset`` or ``data_source``; else ``2wikimultihopqa`` for rows with ``evidences``
"""

from __future__ import annotations

from pathlib import Path

from mempo.data.formats.passages import named_titles, titled_passages
from mempo.data.formats.row import Options, QuestionRow
from mempo.retrieval.base import Passage
from mempo.row_files.rows import DataError
from mempo.row_files.rows_of import file_rows
from mempo.trajectory import Task


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    usual = "2wikimultihopqa" if "evidences" in row.fields else "hotpotqa"
    golds = row.golds(options, "answer", "answer_aliases", "aliases")
    more = options.aliases.get(str(row.fields.get("answer_id")), ())
    return row.task(
        row.identifier("_id", "id"),
        row.text("question"),
        tuple(dict.fromkeys((*golds, *more))),
        row.optional_text("dataset", "data_source") or usual,
    )


def passages(row: QuestionRow, options: Options) -> list[Passage]:
    """The passages of ``context``. Raises ``DataError`` for a shape that is not read."""
    return titled_passages(row, "context", ("sentences", "content"), options.told)


def evidence(row: QuestionRow) -> list[str]:
    """The titles of ``supporting_facts``, else of ``titles``; none where there is neither. Raises
    ``DataError`` for a shape that is not read."""
    name = row.first("supporting_facts", "titles")
    return [] if name is None else named_titles(row, name)


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """The names of each Wikidata id in 2WikiMultihopQA's ``id_aliases.json``: ``aliases``, then
    ``demonyms``, as its own evaluation takes them. A line is ``{"Q_id", "aliases", "demonyms"}``.

    Raises ``DataError`` with file and line for any other shape.
    """
    found: dict[str, tuple[str, ...]] = {}
    for row in file_rows(path):
        if isinstance(row, DataError):
            raise row
        names: list[str] = []
        for name in ("aliases", "demonyms"):
            value = row.fields.get(name) or []
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise row.fault(f'the field "{name}" must be a list of texts')
            names += [one.strip() for one in value if one.strip()]
        key = row.text("Q_id")
        found[key] = tuple(dict.fromkeys((*found.get(key, ()), *names)))
    return found
