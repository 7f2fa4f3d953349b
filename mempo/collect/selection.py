"""Which attempts of a teacher become demonstrations, and why the others do not.

Pure: from the lines of ``trajectories.jsonl`` to those that are kept and counts of the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mempo.trajectory import Ending

Record = Mapping[str, Any]

REASONS: Final = {
    "tool_error": "a tool failed on the way, and not by the teacher's fault",
    "max_rounds": "no answer within rollout.max_rounds",
    "response_budget": "no answer within rollout.max_response_tokens",
    "context_budget": "no answer within the model's context",
    "no_action": "no answer: a round neither searches, opens a page nor answers",
    "wrong": "the answer is wrong",
    "broken_format": "the answer is right, and a rule of the format is broken",
    "question_too_hard": "right, of a question that is answered right too rarely (--share)",
    "question_too_easy": "right, of a question that is answered right too often (--share)",
    "same_text": "right, and word for word as a shorter or earlier attempt",
    "more_than_per_question": "right, and longer than those kept of its question (--per-question)",
}
"""Why an attempt is dropped: the first of these that holds."""


@dataclass(frozen=True)
class Selection:
    """What is kept. ``metric`` at least ``threshold`` counts as right. ``share``: the lowest and
    the highest share of a question's attempts that may be right, both included; ``None`` leaves out
    those that are never right and, where there are several attempts, always. ``per_question``: at
    most so many, the shortest first."""

    metric: str = "exact_match"
    threshold: float = 1.0
    share: tuple[float, float] | None = None
    per_question: int = 1


@dataclass(frozen=True)
class Selected:
    """``kept`` by question, the shortest first; ``counts`` as they are written."""

    kept: Sequence[tuple[Record, float]]
    counts: Mapping[str, Any]


def select(records: Sequence[Record], selection: Selection) -> Selected:
    """The attempts to keep, each with the share of its question's attempts that are right."""
    kept: list[tuple[Record, float]] = []
    dropped: Counter[str] = Counter()
    questions: Counter[str] = Counter()
    for attempts in _by_question(records):
        share = sum(_is_right(one, selection) for one in attempts) / len(attempts)
        outside = _outside(share, len(attempts), selection.share)
        chosen: list[Record] = []
        for one in sorted(attempts, key=_length):
            reason = _fault(one, selection) or outside or _surplus(one, chosen, selection)
            if reason is None:
                chosen.append(one)
            else:
                dropped[reason] += 1
        kept += ((one, share) for one in chosen)
        questions[_fate(share, outside, bool(chosen))] += 1
    counts = {
        "attempts": len(records),
        "kept": len(kept),
        "dropped": {name: dropped[name] for name in REASONS if dropped[name]},
        "questions": {"asked": questions.total(), **dict(sorted(questions.items()))},
    }
    return Selected(kept, counts)


def _by_question(records: Sequence[Record]) -> list[list[Record]]:
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(one["task"], []).append(one)
    return list(found.values())


def _is_right(record: Record, selection: Selection) -> bool:
    value: float = record["metrics"].get(selection.metric, 0.0)
    return value >= selection.threshold


def _length(record: Record) -> tuple[int, int, int]:
    return record["policy_tokens"], len(record["rounds"]), record["sample"]


def _fault(record: Record, selection: Selection) -> str | None:
    """What is wrong with the attempt itself."""
    if record["tool_errors"]:
        return "tool_error"
    if record["ending"] != Ending.ANSWERED:
        return str(record["ending"])
    if not _is_right(record, selection):
        return "wrong"
    return None if record["format_valid"] else "broken_format"


def _outside(share: float, attempts: int, limits: tuple[float, float] | None) -> str | None:
    if limits is None:
        return "question_too_easy" if share == 1.0 and attempts > 1 else None
    low, high = limits
    if share < low:
        return "question_too_hard"
    return "question_too_easy" if share > high else None


def _surplus(record: Record, chosen: Sequence[Record], selection: Selection) -> str | None:
    if any(_texts(record) == _texts(one) for one in chosen):
        return "same_text"
    return "more_than_per_question" if len(chosen) >= selection.per_question else None


def _texts(record: Record) -> list[str]:
    return [one["text"] for one in record["rounds"]]


def _fate(share: float, outside: str | None, kept: bool) -> str:
    if kept:
        return "kept"
    if share == 0.0:
        return "never_right"
    return outside.removeprefix("question_") if outside is not None else "none_usable"
