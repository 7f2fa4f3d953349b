"""Search-R1 and verl: parquet (or JSON) rows for RL trainers (specification section 11).

Read are these variants:

- question: the field ``question``; else ``extra_info.question``; else the last message of role
  ``user`` in ``prompt`` (a list of ``{role, content}``, or one text). Where that message holds
  instructions of Search-R1, with tags such as ``<answer>``, the question is what stands after the
  first ``Question:`` that follows the last tag.
- golds: ``reward_model.ground_truth`` as ``{"target": ...}``, or itself; there a list, one text,
  one text with ``data.answer_separator`` between aliases, or a number. Without ``reward_model``
  the field ``golden_answers``. A list of lists holds the golds of several objectives (MEM1's
  composed files): the questions are then joined with ``"; "``.
- ``prompt``, ``reward_model``, ``ground_truth`` and ``extra_info`` may be JSON or Python text
- id: ``id``, else ``extra_info.index``, with ``data_source`` in front, since files of several
  sources number each of them from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mempo.data.formats.row import Options, QuestionRow
from mempo.row_files.rows import require_text, seen
from mempo.row_files.written import UnreadableText, written_list, written_object
from mempo.trajectory import Objective, Task

_TAG: Final = re.compile(r"</?(think|search|answer|information|tool_call|access|mem)>")
_MARK: Final = "Question:"
_JOINER: Final = "; "
_WRITTEN: Final = re.compile(r"""\s*(?:\{\s*["']|\[\s*\{)""")

MARK_TWICE: Final = 'hold "Question:" twice after the instructions: the first begins the question'
"""What is told of such rows."""


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    source = row.optional_text("data_source")
    extra = _opened(row, "extra_info", row.fields.get("extra_info"))
    extra = extra if isinstance(extra, Mapping) else {}
    nested = replace(row, fields={**row.fields, "extra_info.index": extra.get("index")})
    key = nested.identifier("id", "extra_info.index")
    key = f"{source}/{key}" if source else key
    source = source or "search_r1"
    name, golds = _golds(row)
    question = _question(row, extra, options)
    several = _several(golds)
    if several is None:
        return row.task(key, question, row.golds(options, name, value=golds), source)
    questions = [one.strip() for one in question.split(_JOINER)]
    if len(questions) != len(several) or not all(questions):
        raise row.fault(
            f'"{name}" holds the golds of {len(several)} questions, but {len(questions)} stand in '
            f'the question, with "{_JOINER}" between them: {seen(question)}'
        )
    return Task(
        key,
        tuple(
            Objective(one, row.golds(options, name, value=part))
            for one, part in zip(questions, several, strict=True)
        ),
        source,
    )


def _several(golds: Any) -> list[list[Any]] | None:
    """The golds of each question where there are several: a list of lists."""
    if isinstance(golds, str):
        try:
            golds = written_list(golds)
        except UnreadableText:
            return None  # told when the golds are read
    if isinstance(golds, list) and golds and all(isinstance(one, list) for one in golds):
        return golds
    return None


def _opened(row: QuestionRow, name: str, value: Any) -> Any:
    """What the field holds; read, where it is an object or a list of objects written as text.
    Raises ``DataError`` for such a text that cannot be read."""
    if not isinstance(value, str) or not _WRITTEN.match(value):
        return value
    try:
        found = written_object(value)
    except UnreadableText as problem:
        raise row.fault(f'the field "{name}" {problem}: {seen(value)}') from None
    require_text({name: found}, row.place)
    return found


def _question(row: QuestionRow, extra: Mapping[str, Any], options: Options) -> str:
    if row.first("question"):
        return row.text("question")
    if isinstance(extra.get("question"), str) and extra["question"].strip():
        return str(extra["question"]).strip()
    prompt = _opened(row, "prompt", row.fields.get("prompt"))
    if prompt is None:
        raise row.fault('there is no question: neither "question" nor "prompt"')
    text = prompt if isinstance(prompt, str) else _last_user_message(row, prompt)
    tags = list(_TAG.finditer(text))
    if tags:
        _, found, text = text[tags[-1].end() :].partition(_MARK)
        if _MARK in text:
            options.told.add(MARK_TWICE, row.place)
        if not found:
            raise row.fault(
                f'the "prompt" holds instructions with tags but no "{_MARK}" after them, so its '
                "question cannot be told apart: add the field question"
            )
    if not text.strip():
        raise row.fault('the question in "prompt" is blank')
    return text.strip()


def _last_user_message(row: QuestionRow, prompt: Any) -> str:
    messages = prompt if isinstance(prompt, list) else []
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
    raise row.fault(
        '"prompt" must hold a message {"role": "user", "content": text}, it is ' + seen(prompt)
    )


def _golds(row: QuestionRow) -> tuple[str, Any]:
    """The name of the field with the golds, and what it holds."""
    model = _opened(row, "reward_model", row.fields.get("reward_model"))
    if isinstance(model, Mapping) and model.get("ground_truth") is not None:
        truth = _opened(row, "reward_model.ground_truth", model["ground_truth"])
        if not isinstance(truth, Mapping):
            return "reward_model.ground_truth", truth
        if truth.get("target") is not None:
            return "reward_model.ground_truth.target", truth["target"]
        raise row.fault(
            f'"reward_model.ground_truth" must be an answer, a list or {{"target": …}}, it is '
            f"{seen(truth)}"
        )
    if row.first("golden_answers"):
        return "golden_answers", row.fields["golden_answers"]
    if model is None:
        raise row.fault('there are no gold answers: the field "reward_model" is missing')
    raise row.fault(
        f'there are no gold answers: "reward_model" must hold "ground_truth", it is {seen(model)}'
    )
