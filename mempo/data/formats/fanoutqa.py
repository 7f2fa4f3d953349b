"""FanOutQA: questions that fan out into sub-questions over many pages (section 11).

Read are the development questions of the package ``fanoutqa`` (the default), and files in that
form: a list of ``{"id", "question", "decomposition", "answer"}``, where ``decomposition`` holds
sub-questions ``{"id", "question", "decomposition", "answer", "evidence"}``, nested to any depth,
and ``evidence`` is null or ``{"title", "url"}``. The test questions have no answers and are errors.

``data.fanoutqa`` says what a row is:

- ``subquestions``: every sub-question that has a page of its own, composed with any others
- ``siblings``: the same, but only sub-questions of one question are composed into a task
- ``questions``: the question itself, its answer written out as one text

Answers are one text: true and false are ``Yes`` and ``No``, a list is joined with commas, an object
is written ``key: value`` with commas between.

The corpus, where ``data.corpus`` is not given, has a document for every evidence title: the
sub-questions that were answered from that page, with their answers. It stands in for Wikipedia,
which the package does not ship: easier to search, and without any text that does not matter.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mempo.data.formats.row import Options, QuestionRow, answer_text
from mempo.retrieval.base import Passage
from mempo.row_files.rows import Row, seen
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Task

PACKAGE: Final = "fanoutqa"
_QUESTIONS: Final = Path("data") / "fanout-final-dev.json"


def packaged_questions() -> str:
    """The file of development questions inside the package, found without importing it: the import
    would need packages that nothing here uses. Raises ``ConfigError`` where it is missing."""
    specification = importlib.util.find_spec(PACKAGE)
    folders = (specification and specification.submodule_search_locations) or []
    for folder in folders:
        if (Path(folder) / _QUESTIONS).is_file():
            return str(Path(folder) / _QUESTIONS)
    raise ConfigError(
        "data.questions is empty and the package fanoutqa, which holds the questions, is not "
        "installed: run `make install`, or give data.questions=<file.json>"
    )


def expand(row: QuestionRow, options: Options) -> list[QuestionRow]:
    """The rows that become tasks: the row itself, or its sub-questions that have a page."""
    if options.fanoutqa == "questions":
        return [row]
    parent = row.identifier("id")
    return [
        QuestionRow({**one.fields, "parent": parent}, one.place, one.default_id)
        for one in _leaves(row)
    ]


def task(row: QuestionRow, options: Options) -> Task:
    """A row of ``expand`` as a task. Raises ``DataError`` that names the field and its content."""
    key = row.identifier("id")
    parent = row.fields.get("parent")
    golds = _golds(row, options)
    question = row.text("question")
    if parent is None:
        return row.task(key, question, golds, "fanoutqa", {"parent": key})
    return row.task(f"{parent}/{key}", question, golds, "fanoutqa", {"parent": parent})


def passages(row: QuestionRow, options: Options) -> list[Passage]:
    """What the pages of this row's sub-questions say: question and answer, under the title.

    Sub-questions without question or answer tell nothing. Raises ``DataError`` for a shape that
    is not read.
    """
    found = []
    for one in _leaves(row):
        evidence = one.fields["evidence"]
        page = Row(evidence, f"{one.place}, evidence")
        title, url = page.text("title"), page.optional_text("url")
        written = _written(one.fields.get("answer"))
        question = one.fields.get("question")
        if written is not None and written.strip() and isinstance(question, str):
            found.append(Passage(title, f"{question.strip()} {written.strip()}", url))
    return found


def evidence(row: QuestionRow) -> list[str]:
    """The titles of the pages that answer a row of ``expand``: its own, or those of all its
    sub-questions."""
    if "parent" in row.fields:
        return [Row(row.fields["evidence"], row.place).text("title")]
    return [Row(one.fields["evidence"], one.place).text("title") for one in _leaves(row)]


def _leaves(row: QuestionRow) -> Iterator[QuestionRow]:
    """The sub-questions with a page, depth first."""
    parts = row.fields.get("decomposition")
    if not isinstance(parts, list):
        problem = f"it is {seen(parts)}" if "decomposition" in row.fields else "it is missing"
        raise row.fault(
            f'the field "decomposition" must be a list of sub-questions, {problem}; the test '
            "questions of FanOutQA have none and cannot be used"
        )
    for number, part in enumerate(parts, start=1):
        if not isinstance(part, Mapping):
            raise row.fault(f"sub-question {number} must be an object, it is {seen(part)}")
        name = part.get("id") or number
        one = QuestionRow(part, f"{row.place}, sub-question {name}", f"{row.default_id}-{number}")
        if part.get("decomposition"):
            yield from _leaves(one)
        elif isinstance(part.get("evidence"), Mapping):
            yield one
        elif part.get("evidence") is not None:
            raise one.fault(
                f'"evidence" must be null or an object with a title, it is {seen(part["evidence"])}'
            )


def _golds(row: QuestionRow, options: Options) -> tuple[str, ...]:
    value = row.fields.get("answer")
    written = _written(_read(row, value, options))
    if written is None:
        problem = f"it is {seen(value)}" if "answer" in row.fields else "it is missing"
        raise row.fault(
            'the field "answer" must be a text, a number, true or false, or a list or an object of '
            f"these, {problem}"
        )
    if not written.strip():
        raise row.fault('the field "answer" is blank')
    return (written.strip(), str(value)) if isinstance(value, bool) else (written.strip(),)


def _read(row: QuestionRow, value: Any, options: Options) -> Any:
    """The answer; a list written as text becomes one."""
    if not isinstance(value, str):
        return value
    found = row.listed("answer", value, options.told)
    return value if found == [value] else found


def _written(value: Any) -> str | None:
    """An answer as one text; ``None`` for what is no answer."""
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, Mapping):
        parts = [(f"{key}: ", _written(one)) for key, one in value.items()]
    elif isinstance(value, list):
        parts = [("", _written(one)) for one in value]
    else:
        return answer_text(value)
    if any(text is None for _, text in parts):
        return None
    return ", ".join(f"{key}{text}" for key, text in parts)
