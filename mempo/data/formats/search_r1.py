"""Search-R1 and verl: parquet (or JSON) rows for RL trainers (specification section 11).

Read are these variants:

- question: the field ``question``; else ``extra_info.question``; else the last message of role
  ``user`` in ``prompt`` (a list of ``{role, content}``, or one text). Where that message holds
  instructions of Search-R1, with tags such as ``<answer>``, the question is what stands after its
  last ``Question:``.
- golds: ``reward_model.ground_truth`` as ``{"target": ...}``, or itself; there a list, one text,
  one text with ``data.answer_separator`` between aliases, or a number. Without ``reward_model``
  the field ``golden_answers``.
- id: ``id``, else ``extra_info.index``, with ``data_source`` in front, since files of several
  sources number each of them from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mempo.data.formats.row import Options, QuestionRow
from mempo.runtime.rows import seen
from mempo.trajectory import Task

_TAG: Final = re.compile(r"</?(think|search|answer|information|tool_call|access|mem)>")
_MARK: Final = "Question:"


def task(row: QuestionRow, options: Options) -> Task:
    """The row as a task. Raises ``DataError`` that names the field and what it holds."""
    source = row.optional_text("data_source")
    extra = row.fields.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    nested = replace(row, fields={**row.fields, "extra_info.index": extra.get("index")})
    key = nested.identifier("id", "extra_info.index")
    name, golds = _golds(row)
    return row.task(
        f"{source}/{key}" if source else key,
        _question(row, extra),
        row.golds(options, name, value=golds),
        source or "search_r1",
    )


def _question(row: QuestionRow, extra: Mapping[str, Any]) -> str:
    if row.first("question"):
        return row.text("question")
    if isinstance(extra.get("question"), str) and extra["question"].strip():
        return str(extra["question"]).strip()
    prompt = row.fields.get("prompt")
    if prompt is None:
        raise row.fault('there is no question: neither "question" nor "prompt"')
    text = prompt if isinstance(prompt, str) else _last_user_message(row, prompt)
    if _TAG.search(text):
        _, found, text = text.rpartition(_MARK)
        if not found:
            raise row.fault(
                f'the "prompt" holds instructions with tags but no "{_MARK}", so its question '
                "cannot be told apart: add the field question"
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
    model = row.fields.get("reward_model")
    if isinstance(model, Mapping) and model.get("ground_truth") is not None:
        truth = model["ground_truth"]
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
