"""The figures of an evaluation (specification section 9)."""

from __future__ import annotations

from typing import Any

import pytest

from mempo.config import EvaluationConfig
from mempo.evaluation import evaluation_entry, evaluation_settings, flat_entry


def summary(objectives: int, rounds: int, exact: float, **more: Any) -> dict[str, Any]:
    """One task; ``exact`` is the mean over its objectives."""
    return {
        "task": "t",
        "objectives": objectives,
        "rounds": rounds,
        "answered": 1.0,
        "ending": "answered",
        "format_valid": 1.0,
        "tool_calls": float(rounds - 1),
        "tool_failures": 0.0,
        "tool_errors": 0.0,
        "total_tokens": 100.0 * rounds,
        "peak_tokens": 50.0 + rounds,
        "exact_match": exact,
        "exact_match_sum": exact * objectives,
        "f1": exact / 2,
        "f1_sum": exact / 2 * objectives,
        "f1_set": exact / 4,
        "f1_set_sum": exact / 4 * objectives,
        **more,
    }


ROWS = [
    summary(2, 3, 1.0),
    summary(2, 5, 0.5, tool_failures=2.0, tool_errors=1.0),
    summary(4, 5, 0.25, format_valid=0.0),
    summary(4, 8, 0.0, answered=0.0, ending="max_rounds", format_valid=0.0),
]


def test_figures_worked_out_by_hand() -> None:
    entry = evaluation_entry(ROWS, 0, 0)
    assert entry["tasks"] == 4
    assert entry["exact_match"] == pytest.approx(43.75)
    assert entry["f1"] == pytest.approx(21.875)
    assert entry["f1_set"] == pytest.approx(10.9375)
    assert entry["exact_match_sum"] == pytest.approx((2 + 1 + 1 + 0) / 4)
    assert entry["f1_sum"] == pytest.approx(0.5)
    assert entry["f1_set_sum"] == pytest.approx(0.25)
    assert entry["answered"] == 0.75
    assert entry["format_valid"] == 0.5
    assert entry["rounds"] == 5.25
    assert entry["tool_calls"] == 4.25
    assert entry["tool_failures"] == 0.5
    assert entry["tool_errors"] == 0.25
    assert entry["total_tokens"] == 525.0
    assert entry["peak_tokens"] == 55.25
    assert entry["endings"] == {"answered": 3, "max_rounds": 1}
    assert "ci95" not in entry


def test_figures_by_objectives_and_rounds() -> None:
    entry = evaluation_entry(ROWS, 0, 0)
    assert list(entry["by_objectives"]) == ["2", "4"]
    assert entry["by_objectives"]["2"]["exact_match"] == pytest.approx(75.0)
    assert entry["by_objectives"]["4"]["exact_match"] == pytest.approx(12.5)
    assert entry["by_objectives"]["4"]["tasks"] == 2
    assert list(entry["by_rounds"]) == ["3", "5", "8"]
    assert entry["by_rounds"]["5"]["exact_match"] == pytest.approx(37.5)
    assert entry["by_rounds"]["5"]["total_tokens"] == 500.0
    many = evaluation_entry([summary(n, n, 1.0) for n in (10, 2)], 0, 0)
    assert list(many["by_objectives"]) == ["2", "10"]


def test_bootstrap_interval() -> None:
    rows = [summary(1, 1, float(i < 30)) for i in range(40)]
    entry = evaluation_entry(rows, 1000, 7)
    low, high = entry["ci95"]["exact_match"]
    assert low < 75.0 < high
    # The standard error of a share of 0.75 in 40 tasks is 6.85 points; 1.96 of them each way.
    assert low == pytest.approx(75.0 - 13.4, abs=3.0)
    assert high == pytest.approx(75.0 + 13.4, abs=3.0)
    assert evaluation_entry(rows, 1000, 7) == entry
    assert evaluation_entry(rows, 1000, 8)["ci95"] != entry["ci95"]
    assert entry["ci95"]["f1"] == pytest.approx([low / 2, high / 2])


def test_bootstrap_of_equal_values_and_of_one_sample() -> None:
    same = [summary(1, 1, 0.5)] * 3
    assert evaluation_entry(same, 100, 0)["ci95"]["exact_match"] == [50.0, 50.0]
    low, high = evaluation_entry(ROWS, 1, 0)["ci95"]["exact_match"]
    assert low == high


def test_without_tasks_there_are_no_figures() -> None:
    with pytest.raises(ValueError, match="without tasks"):
        evaluation_entry([], 10, 0)


def test_flat_entry() -> None:
    entries = {"memory": {"f1": 3.0, "tasks": 2}, "full": {"f1": 1.0, "tasks": 2}}
    flat = flat_entry(entries)
    assert flat["context"] == "memory"
    assert (flat["f1"], flat["tasks"]) == (3.0, 2)
    assert flat["contexts"] == entries


def test_settings() -> None:
    config = EvaluationConfig(max_rounds=9, max_response_tokens=77, max_round_tokens=33)
    settings = evaluation_settings(config, "memory", 44)
    assert (settings.context, settings.max_rounds) == ("memory", 9)
    assert (settings.max_response_tokens, settings.max_round_tokens) == (77, 33)
    assert settings.max_observation_tokens == 44
    assert settings.prefill_memory
    assert (settings.keep_steps, settings.newest) == (1, "full")
