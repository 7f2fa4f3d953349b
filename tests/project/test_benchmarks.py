"""Every benchmark runs at a small shape, finds its sides equal, and prints its figures last
(around the method)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from benchmarks import retrieval, rollout, scoring, step, table, update
from benchmarks.common import (
    Words,
    forward_flops,
    load_model,
    matmul_peak,
    time_sides,
    with_peak_memory,
)

pytestmark = pytest.mark.slow

Run = Callable[[Callable[[Sequence[str]], None], str], dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a benchmark's ``main`` and reads its last line."""

    def run(main: Callable[[Sequence[str]], None], arguments: str) -> dict[str, Any]:
        main(arguments.split())
        last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return last

    return run


SCORING = "--rounds 3 --prompt 20 --generated 12 --memory 6 --observed 10 --answer 4 --repeats 1"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scoring(run: Run, dtype: str) -> None:
    result = run(scoring.main, f"{SCORING} --doubled --dtype {dtype}")
    assert 0 <= result["max_abs_diff"] < (1e-4 if dtype == "float32" else 0.5)
    for figure in ("ratio", "ratio_sorted", "ratio_with_old", "doubled_time_ratio"):
        assert result[figure] > 0
    # Branches of 2 x (1 + 4) and 2 x (6 + 4) tokens on trees of 63 tokens.
    shape = scoring.parse(SCORING.split())
    sides = scoring.Sides(load_model("tiny")[0], shape)
    assert sides.tree_tokens() == 2 * (63 + 2 * 5 + 2 * 10)
    # Weights of 4 layers (queries and output 256 x 256, keys and values 256 x 128, three matrices
    # of 256 x 688), and the output layer for the 4 scored tokens of each branch; attention of the
    # trees and branches within themselves, and of the branches to their prefixes: 20 (prompt)
    # twice, 41 and 63 tokens.
    weights = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 688)
    pairs = 63 * 64 // 2 + 2 * (5 * 6 // 2) + 2 * (10 * 11 // 2)
    behind = 5 * (41 + 63) + 10 * (20 + 20)
    expected = 2 * (2 * weights * 93 + 2 * 256 * 1024 * 16 + 4 * 256 * 4 * (pairs + behind))
    assert sides.tree_flops() == expected
    assert result["tokens_per_second"] > 0
    assert result["peak_share"] > 0
    assert "peak_memory_ratio" in result
    assert {"torch", "processor", "threads"} <= result["machine"].keys()


def test_scoring_times_the_tree_alone(run: Run) -> None:
    result = run(scoring.main, f"{SCORING} --doubled --tree-only")
    assert result["doubled_time_ratio"] > 0
    assert result["ratio"] is None


def test_a_difference_ends_the_scoring_benchmark() -> None:
    checks = scoring.Checks(1e-4)
    checks.compare([torch.zeros(2)], [torch.zeros(2)])
    with pytest.raises(SystemExit, match="differ"):
        checks.compare([torch.zeros(2)], [torch.tensor([0.0, 1.0])])
    with pytest.raises(SystemExit, match="differ"):
        scoring.Checks(1e-4).compare([torch.tensor([float("nan")])], [torch.zeros(1)])


@pytest.mark.parametrize("more", ["", "--dtype bfloat16 --gradient-checkpointing selective"])
def test_update(run: Run, more: str) -> None:
    shape = "--tokens 512 --sequences 2 --micro-batch-tokens 256 --plain-micro-batch-tokens 512"
    shape += " --matmul-size 128"
    result = run(update.main, f"{shape} --repeats 1 {more}")
    assert (result["tokens"], result["policy_tokens"]) == (512, 128)
    assert result["gradient_difference"] < (0.05 if more else 1e-4)
    assert result["time_ratio"] > 0
    assert result["tokens_per_second"] == pytest.approx(512 / result["seconds_lean"], rel=1e-3)
    assert result["peak_share"] > 0
    assert "memory_ratio" in result


def test_update_with_a_shared_prompt(run: Run) -> None:
    shape = "--tokens 512 --sequences 4 --prompt 64 --micro-batch-tokens 512 --matmul-size 128"
    result = run(update.main, f"{shape} --repeats 1")
    assert (result["tokens"], result["policy_tokens"]) == (512, 128)
    assert result["gradient_difference"] < 1e-4
    assert result["peak_share"] is None


def test_different_gradients_end_the_update_benchmark() -> None:
    gradients = {"lean": {"w": torch.ones(2)}, "plain": {"w": torch.full((2,), 1.01)}}
    with pytest.raises(SystemExit, match="differ"):
        update.check_gradients(gradients, "float32")


def test_rollout(run: Run) -> None:
    result = run(
        rollout.main,
        "--trajectories 4 --group 2 --rounds 2 --prompt 60 --generated 20 --observed 40 "
        "--tool-ms 20 --straggler-seconds 0.5 --repeats 1",
    )
    for figure in ("loop_over_generate", "loop_over_generate_200ms", "slow_tool_delay_ratio"):
        assert result[figure] > 0
    assert result["same_samples"] >= 0.9
    assert result["seconds_straggler"] > 0.5


@pytest.mark.parametrize("case", ["single", "tools"])
def test_step(run: Run, case: str) -> None:
    rounds = {"single": "--generated 48", "tools": "--rounds 3 --generated 32 --observed 40"}[case]
    shape = f"--prompts 1 --generations 2 --prompt 60 {rounds} --repeats 1 --peer-seconds 100"
    result = run(step.main, f"{case} {shape}")
    assert result["ratio"] == pytest.approx(100 / result["seconds_step"], rel=1e-2)
    assert result["trajectories_per_minute"] == pytest.approx(
        120 / result["seconds_step"], rel=1e-2
    )
    phases = sum(result[f"seconds_{phase}"] for phase in step.PHASES)
    assert 0 < phases <= result["seconds_step"] * 1.01


def test_retrieval(run: Run) -> None:
    result = run(
        retrieval.main,
        "--passages 500 --words 20 --vocabulary 2000 --queries 50 --against-memory "
        "--server-seconds 1 --clients 4",
    )
    assert result["same_top5"] == 1.0
    assert result["speedup"] > 0
    assert result["speedup_memory"] > 0
    assert result["server_answers"] > 0
    assert result["server_errors"] == 0
    assert 0 < result["query_ms_median"] <= result["query_ms_p95"] <= result["query_ms_most"]


def test_every_command_of_the_table_can_be_parsed() -> None:
    parsers = {
        "scoring": scoring.parse,
        "update": update.parse,
        "rollout": rollout.parse,
        "step": step.parse,
        "retrieval": retrieval.parse,
    }
    for command in (*table.SMALL, *table.FULL):
        script, arguments = command.split(".py")
        parsers[script](arguments.split())


def test_the_tiny_model_is_the_one_of_the_figures() -> None:
    model, tokenizer = load_model("tiny")
    assert len(tokenizer) == model.config.vocab_size == 1024
    # A layer: queries and outputs 256 x 256, keys and values 256 x 128, three of 256 x 688.
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 688
    expected = 2 * 4 * layer * 10 + 2 * 1024 * 256 * 3 + 4 * 256 * (21 + 10) * 4
    assert forward_flops(model, [6, 4], 3) == expected


def test_words_fit_a_length() -> None:
    _, tokenizer = load_model("tiny")

    def length(text: str) -> int:
        return len(tokenizer.encode("<mem>" + text, add_special_tokens=False))

    words = Words(tokenizer, seed=0)
    assert length(words.fitted(length, 50)) == 50
    with pytest.raises(ValueError, match="no text fits"):
        words.fitted(length, 1)


def test_sides_take_turns_and_memory_is_seen() -> None:
    order: list[str] = []
    seconds, results = time_sides(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2
    )
    assert order == ["a", "b", "b", "a"]
    assert [len(values) for values in seconds.values()] == [2, 2]
    assert results == {"a": None, "b": None}
    _, peak = with_peak_memory(lambda: torch.ones(16 * 2**20).sum())
    assert peak is None or peak > 60 * 2**20
    assert matmul_peak("float32", size=64, runs=1) > 0
