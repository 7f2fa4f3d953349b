"""Natural Questions open, TriviaQA and PopQA: questions with answer lists (section 11).

Read are these variants:

- question: ``question`` or ``Question`` (TriviaQA as released)
- golds, from the first of these fields that is there: ``golden_answers``, ``possible_answers``,
  ``answers``, ``answer``, ``Answer``. A list, one text, one text with ``data.answer_separator``, or
  a number; for TriviaQA an object with ``value`` and ``aliases`` (``Value`` and ``Aliases``).
  A list written as text (PopQA) is read as one.
- id: ``id``, ``question_id``, ``QuestionId`` or ``qid``, else the file's name and the row's number
- source: ``dataset`` or ``data_source``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mempo.data.formats.row import Options, QuestionRow
from mempo.runtime.rows import seen
from mempo.trajectory import Task

_ANSWERS: Final = ("golden_answers", "possible_answers", "answers", "answer", "Answer")
_UNKNOWN: Final = "<unk>"  # the value of TriviaQA's test split on the hub


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    name = row.first(*_ANSWERS)
    if name is None:
        raise row.fault(f"there are no gold answers: none of the fields {', '.join(_ANSWERS)}")
    value = row.fields[name]
    if isinstance(value, Mapping):
        value = _value_and_aliases(row, name, value)
    return row.task(
        row.identifier("id", "question_id", "QuestionId", "qid"),
        row.text("question", "Question"),
        row.golds(options, name, value=value),
        row.optional_text("dataset", "data_source") or "open_qa",
    )


def _value_and_aliases(row: QuestionRow, name: str, value: Mapping[str, Any]) -> list[Any]:
    lower = {key.lower(): content for key, content in value.items()}
    first, aliases = lower.get("value"), lower.get("aliases")
    if first is None or not isinstance(aliases, (list, type(None))):
        raise row.fault(
            f'the field "{name}" must hold "value" and a list of "aliases", it is {seen(value)}'
        )
    if first == _UNKNOWN:
        raise row.fault(f'the answer is "{_UNKNOWN}": a test split without answers cannot be used')
    return [first, *(aliases or [])]
