"""Which attempts of a teacher are kept, and what is said of the others (around the method)."""

from __future__ import annotations

from typing import Any

import pytest

from mempo.collect.selection import Selection, select


def attempt(task: str, sample: int, right: float = 1.0, tokens: int = 10, **more: Any) -> Any:
    return {
        "task": task,
        "sample": sample,
        "ending": "answered",
        "format_valid": True,
        "metrics": {"exact_match": float(right == 1.0), "f1": right},
        "policy_tokens": tokens,
        "tool_errors": 0,
        "rounds": [{"text": f"{task} {sample}"}],
        **more,
    }


RECORDS = [
    attempt("always", 0), attempt("always", 1),
    attempt("never", 0, 0.0), attempt("never", 1, 0.0, ending="max_rounds"),
    attempt("half", 0, tokens=30), attempt("half", 1, tokens=20), attempt("half", 2, 0.5),
    attempt("half", 3, tool_errors=1),
    attempt("broken", 0, format_valid=False), attempt("broken", 1, 0.0, ending="no_action"),
]  # fmt: skip


def names(records: Any, selection: Selection) -> list[tuple[str, int, float]]:
    kept = select(records, selection).kept
    return [(one["task"], one["sample"], share) for one, share in kept]


def test_counts_worked_out_by_hand() -> None:
    found = select(RECORDS, Selection())
    assert [(one["task"], one["sample"], share) for one, share in found.kept] == [("half", 1, 0.75)]
    assert found.counts == {
        "attempts": 10,
        "kept": 1,
        "dropped": {
            "tool_error": 1,
            "max_rounds": 1,
            "no_action": 1,
            "wrong": 2,
            "broken_format": 1,
            "question_too_easy": 2,
            "more_than_per_question": 1,
        },
        "questions": {"asked": 4, "kept": 1, "never_right": 1, "none_usable": 1, "too_easy": 1},
    }


def test_the_shortest_come_first() -> None:
    assert names(RECORDS, Selection(per_question=5)) == [("half", 1, 0.75), ("half", 0, 0.75)]


@pytest.mark.parametrize(
    ("share", "tasks"),
    [
        ((0.0, 1.0), {"always", "half"}),
        ((0.75, 0.75), {"half"}),
        ((0.8, 1.0), {"always"}),
        ((0.1, 0.7), set()),
    ],
)
def test_a_range_of_shares(share: tuple[float, float], tasks: set[str]) -> None:
    assert {name for name, _, _ in names(RECORDS, Selection(share=share))} == tasks


def test_metric_and_threshold() -> None:
    records = [attempt("a", 0, 0.5), attempt("a", 1, 0.4)]
    assert names(records, Selection()) == []
    assert names(records, Selection("f1", 0.5)) == [("a", 0, 0.5)]


def test_the_same_text_is_kept_once() -> None:
    same = [{"text": "same"}]
    records = [attempt("a", 0, rounds=same), attempt("a", 1, rounds=same), attempt("a", 2, 0.0)]
    found = select(records, Selection(per_question=3))
    assert [one["sample"] for one, _ in found.kept] == [0]
    assert found.counts["dropped"] == {"wrong": 1, "same_text": 1}


def test_of_one_attempt_nothing_is_too_easy() -> None:
    assert names([attempt("a", 0), attempt("b", 0, 0.0)], Selection()) == [("a", 0, 1.0)]
