"""The figures of an evaluation (specification section 9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from mempo.agent.rollout import Rollout
from mempo.command.cli import compose
from mempo.config import EvaluationConfig
from mempo.engine.interface import Sampling
from mempo.evaluation.differences import compared_pairs, paired_differences
from mempo.evaluation.evaluate import (
    evaluate,
    evaluation_entry,
    evaluation_sampling,
    evaluation_settings,
    flat_entry,
)
from mempo.runtime.run_files import write_json
from mempo.trajectory import Objective, Task
from tests.support.fakes import AnsweringEngine, FakeRetriever
from tests.support.small_tokenizers import make_conversation


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
        "repeated_rounds": 0.0,
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
    summary(4, 8, 0.0, answered=0.0, ending="max_rounds", format_valid=0.0, repeated_rounds=6.0),
]


def test_evaluation_may_sample_as_training_may_not() -> None:
    settings = EvaluationConfig(temperature=0.7, top_p=0.9, top_k=20)
    assert evaluation_sampling(settings) == Sampling(temperature=0.7, top_p=0.9, top_k=20)
    assert evaluation_sampling(EvaluationConfig()) == Sampling(0.0, 1.0, -1)


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
    assert entry["repeated_rounds"] == 1.5
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


def test_figures_by_source() -> None:
    assert "by_source" not in evaluation_entry(ROWS, 0, 0)
    rows = [
        summary(2, 3, exact, source=name) for exact, name in ((1.0, "nq"), (0.5, "a"), (0, "a"))
    ]
    assert evaluation_entry(rows, 0, 0)["by_source"] == {
        "a": {"tasks": 2, "exact_match": 25.0, "f1": 12.5},
        "nq": {"tasks": 1, "exact_match": 100.0, "f1": 50.0},
    }


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
    config = EvaluationConfig(
        max_rounds=9, max_response_tokens=77, max_round_tokens=33, max_observation_tokens=44
    )
    settings = evaluation_settings(config, "memory")
    assert (settings.context, settings.max_rounds) == ("memory", 9)
    assert (settings.max_response_tokens, settings.max_round_tokens) == (77, 33)
    assert settings.max_observation_tokens == 44
    assert settings.prefill_memory
    assert settings.reuse_repeats
    assert not evaluation_settings(replace(config, reuse_repeats=False), "memory").reuse_repeats
    assert (settings.keep_steps, settings.newest) == (1, "full")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory", ("memory", 1, "full", True)),
        ("full", ("full", 1, "full", True)),  # keep_steps and newest have no meaning
        ("keep_three", ("memory", 3, "full", True)),
        ("keep_all", ("memory", "all", "full", True)),
        ("newest_short", ("memory", 1, "short", True)),
        ("no_prefill", ("memory", 1, "full", False)),
    ],
)
def test_settings_of_each_context(name: str, expected: tuple[Any, ...]) -> None:
    config = compose("evaluate").evaluation
    found = evaluation_settings(config, name)
    assert (found.context, found.keep_steps, found.newest, found.prefill_memory) == expected


def test_evaluation_has_its_own_observation_budget() -> None:
    config = compose("evaluate", ["rollout.max_observation_tokens=99"]).evaluation
    assert evaluation_settings(config, "memory").max_observation_tokens == 1024
    config = compose("evaluate", ["evaluation.max_observation_tokens=222"]).evaluation
    assert evaluation_settings(config, "full").max_observation_tokens == 222


def test_what_a_mode_leaves_out_is_as_elsewhere() -> None:
    config = compose(
        "evaluate",
        ["evaluation.memory_context.newest=short", "evaluation.prefill_memory=false"],
    ).evaluation
    found = evaluation_settings(config, "keep_three")
    assert (found.keep_steps, found.newest, found.prefill_memory) == (3, "short", False)


# Several numbers of objectives, and differences


def test_each_number_of_objectives_has_its_interval() -> None:
    parts = evaluation_entry(ROWS, 500, 0)["by_objectives"]
    assert parts["2"]["ci95"]["exact_match"] == [50.0, 100.0]  # of 1.0 and 0.5
    assert parts["4"]["ci95"]["exact_match"] == [0.0, 25.0]
    assert "ci95" not in evaluation_entry(ROWS[:2], 500, 0)["by_objectives"]["2"]


def test_pairs_differ_in_model_or_context() -> None:
    names = [("a", "memory"), ("a", "full"), ("b", "memory"), ("b", "full")]
    assert compared_pairs(names) == [
        (names[0], names[1]),
        (names[0], names[2]),
        (names[1], names[3]),
        (names[2], names[3]),
    ]


def paired_rows(*exact: float, tokens: float = 0.0) -> list[dict[str, Any]]:
    """Two tasks of two objectives, then tasks of four."""
    return [
        summary(2 if i < 2 else 4, 3, value, task=f"t{i}", total_tokens=100.0 * i + tokens)
        for i, value in enumerate(exact)
    ]


def test_paired_differences_worked_out_by_hand() -> None:
    """The two scatter over tasks, and differ by the same everywhere but in one task."""
    summaries = {
        ("m", "memory"): paired_rows(0.0, 0.5, 0.25, 0.5),
        ("m", "full"): paired_rows(0.5, 1.0, 0.75, 0.5, tokens=-40.0)[::-1],
    }
    found = paired_differences(summaries, 1000, 0)
    values = {(one.metric, one.objectives): one for one in found}
    everything = values["exact_match", None]
    assert (everything.first, everything.second) == (("m", "memory"), ("m", "full"))
    assert (everything.tasks, everything.value) == (4, 37.5)  # (50 + 50 + 50 + 0) / 4
    # The fourth task is drawn 0 to 4 times of 4: the mean is 50 minus 12.5 for each time; 3 times
    # or more in 5.1 % of the draws, which is more than the 2.5 % below the interval.
    assert everything.interval == (12.5, 50.0)
    assert values["exact_match", 2].value == 50.0
    assert values["exact_match", 2].interval == (50.0, 50.0)
    assert values["exact_match", 4].value == 25.0
    assert values["total_tokens", None].value == -40.0
    assert values["total_tokens", None].interval == (-40.0, -40.0)
    assert values["answered", 2].tasks == 2
    assert [one.objectives for one in found if one.metric == "rounds"] == [2, 4, None]
    assert {one.interval for one in paired_differences(summaries, 0, 0)} == {None}


def test_differences_need_the_same_tasks() -> None:
    summaries = {("a", "full"): paired_rows(0.0, 0.5), ("b", "full"): paired_rows(0.0)}
    with pytest.raises(ValueError, match="did not get the same tasks"):
        paired_differences(summaries, 0, 0)


# Two processes


def make_tasks() -> list[Task]:
    """Five tasks, so that one of two processes gets three."""
    return [
        Task(f"t{i}", (Objective(f"Who is number {i}?", (f"gold {i}",)),)) for i in (3, 1, 4, 0, 2)
    ]


def answer(prompt: str) -> str:
    """Searches once, then answers; right for the even numbers."""
    number = next(n for n in range(5) if f"number {n}" in prompt)
    if "<information>" not in prompt:
        return f"<think>so</think><search>{'x' * number}</search>"
    said = f"gold {number - number % 2}"
    return f"<mem>m</mem><think>so</think><answer>{said}</answer>"


CONFIG = EvaluationConfig(prefill_memory=False, bootstrap_samples=50, max_observation_tokens=400)


def evaluate_on(
    rank: int,
    world_size: int,
    config: EvaluationConfig = CONFIG,
    answer: Callable[[str], str] = answer,
) -> dict[str, dict[str, Any]]:
    import jinja2

    from mempo.agent.tools import ToolBox
    from mempo.config import RetrieverConfig

    conversation = make_conversation("bytes")
    rollout = Rollout(
        AnsweringEngine(conversation, answer),
        conversation,
        ToolBox({"default": FakeRetriever({})}, RetrieverConfig()),
        jinja2.Template("{{ question }}"),
    )
    return evaluate(rollout, make_tasks(), config, 7, rank, world_size)


def evaluate_in_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    write_json(Path(folder) / f"{rank}.json", evaluate_on(rank, 2))
    dist.destroy_process_group()


def test_two_processes_give_the_table_of_one(tmp_path: Path) -> None:
    alone = evaluate_on(0, 1)
    assert alone["memory"]["tasks"] == 5
    assert alone["memory"]["exact_match"] == 60.0
    assert alone["memory"]["rounds"] == 2.0
    spawn(evaluate_in_process, args=(str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == json.loads(json.dumps(alone))


# Circles


def answer_or_circle(prompt: str) -> str:
    """Odd numbers go round in circles: the first round's context and the second's, then the same
    again."""
    number = next(n for n in range(5) if f"number {n}" in prompt)
    search = "<mem>m</mem><think>so</think><search>x</search>"
    return search if number % 2 else answer(prompt)


def test_circles_change_nothing_but_their_count() -> None:
    config = replace(CONFIG, max_rounds=10)
    short = evaluate_on(0, 1, config, answer_or_circle)
    long = evaluate_on(0, 1, replace(config, reuse_repeats=False), answer_or_circle)
    assert short["memory"]["endings"] == {"answered": 3, "max_rounds": 2}
    assert short["memory"]["repeated_rounds"] == 2 * (10 - 2) / 5
    assert short["memory"]["by_rounds"]["10"]["repeated_rounds"] == 8.0
    assert short["full"]["repeated_rounds"] == 0.0
    for entries in (short, long):
        for entry in entries.values():
            for figures in (entry, *entry["by_objectives"].values(), *entry["by_rounds"].values()):
                del figures["repeated_rounds"]
    assert short == long
