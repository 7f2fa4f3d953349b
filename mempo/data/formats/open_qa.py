"""Natural Questions open, TriviaQA, PopQA, SQuAD, KILT, StrategyQA (specification section 11).

Read are these variants:

- question: ``question``, ``Question`` (TriviaQA as released) or ``input`` (KILT)
- golds, from the first of these fields that is there: ``golden_answers``, ``possible_answers``,
  ``answers``, ``answer``, ``Answer``, ``output``. A list, one text, one text with
  ``data.answer_separator``, or a number; for TriviaQA an object with ``value`` and
  ``aliases`` (``Value`` and ``Aliases``).
  A list written as text (PopQA) is read as one. KILT's ``output`` holds objects with ``answer`` or
  without, SQuAD's ``answers`` objects with ``text`` (on the hub one object with that list), and
  StrategyQA's true and false are yes and no.
- SQuAD as released: articles with ``paragraphs``, whose ``qas`` are the rows. Its questions without
  an answer are errors.
- id: ``id``, ``question_id``, ``QuestionId`` or ``qid``, else the file's name and the row's number
- source: ``dataset`` or ``data_source``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mempo.data.formats.row import Options, QuestionRow
from mempo.row_files.rows import seen
from mempo.trajectory import Task

_ANSWERS: Final = ("golden_answers", "possible_answers", "answers", "answer", "Answer", "output")
_UNKNOWN: Final = "<unk>"  # the value of TriviaQA's test split on the hub


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    name = row.first(*_ANSWERS)
    if name is None:
        raise row.fault(f"there are no gold answers: none of the fields {', '.join(_ANSWERS)}")
    value = row.fields[name]
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif isinstance(value, Mapping):
        value = _value_and_aliases(row, name, value)
    elif isinstance(value, list):
        value = _texts(row, name, value)
    return row.task(
        row.identifier("id", "question_id", "QuestionId", "qid"),
        row.text(*(("input",) if _is_kilt(row) else ("question", "Question"))),
        row.golds(options, name, value=value),
        row.optional_text("dataset", "data_source") or "open_qa",
    )


def expand(row: QuestionRow, options: Options) -> list[QuestionRow]:
    """The row itself, or the questions of an article of SQuAD. Raises ``DataError``."""
    if "paragraphs" not in row.fields or row.first("question", "Question", "input"):
        return [row]
    found: list[QuestionRow] = []
    for paragraph in _objects(row, "paragraphs"):
        for one in _objects(replace(row, fields=paragraph), "qas"):
            number = len(found) + 1
            place = f"{row.place}, question {one.get('id', number)}"
            found.append(QuestionRow(one, place, f"{row.default_id}-{number}"))
    return found


def _is_kilt(row: QuestionRow) -> bool:
    return row.first("question", "Question") is None and "input" in row.fields


def _objects(row: QuestionRow, name: str) -> list[Mapping[str, Any]]:
    value = row.fields.get(name)
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise row.fault(f'the field "{name}" must be a list of objects, it is {seen(value)}')
    return value


def _texts(row: QuestionRow, name: str, value: list[Any]) -> list[Any]:
    """The answers of KILT's ``output``, or of SQuAD's ``answers``; other lists as they are."""
    key = "answer" if name == "output" else "text"
    if not value or not all(isinstance(one, Mapping) for one in value):
        return value
    return [one[key] for one in value if one.get(key) is not None]


def _value_and_aliases(row: QuestionRow, name: str, value: Mapping[str, Any]) -> list[Any]:
    if isinstance(value.get("text"), list):  # SQuAD on the hub
        return list(value["text"])
    lower = {key.lower(): content for key, content in value.items()}
    first, aliases = lower.get("value"), lower.get("aliases")
    if first is None or not isinstance(aliases, (list, type(None))):
        raise row.fault(
            f'the field "{name}" must hold "value" and a list of "aliases", it is {seen(value)}'
        )
    if first == _UNKNOWN:
        raise row.fault(f'the answer is "{_UNKNOWN}": a test split without answers cannot be used')
    return [first, *(aliases or [])]
