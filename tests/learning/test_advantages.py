"""Outcome and memory advantages (specification section 7)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import MemoryConfig, OutcomeConfig
from mempo.learning.advantages import assign_advantages, group_zscore
from mempo.trajectory import Objective, Round, SpanKind, Task, TokenSequence, Trajectory
from tests.support.cases_path import load_cases

OUTCOME = OutcomeConfig()
MEMORY = MemoryConfig()


def zscore(values: list[float], groups: list[int] | None = None, **options: Any) -> list[float]:
    tensor = torch.tensor(values, dtype=options.pop("dtype", torch.float64))
    numbers = torch.tensor(groups if groups is not None else [0] * len(values))
    result = group_zscore(tensor, numbers, options.pop("std_floor", 0.0), **options)
    assert result.dtype == tensor.dtype
    return result.tolist()


def trajectory(
    reward: float | None,
    memories: list[float | None],
    *,
    task: str = "t",
    sample: int = 0,
    memory_tokens: int = 2,
    prefilled: bool = False,
    split: bool = False,
) -> Trajectory:
    """A trajectory with prompt 3, then rounds of memory, 2 other policy and 2 observed tokens.

    Entry k of ``memories`` is the memory reward of round k + 2, ``None`` for one without memory.
    ``prefilled`` gives every memory's first token mask 0; ``split`` gives each round a sequence.
    """
    result = Trajectory(Task(task, (Objective("q", ("g",)),)), 0, sample, prompt_length=3)
    result.reward = reward
    for number, memory_reward in enumerate([None, *memories], start=1):
        if split or number == 1:
            result.sequences.append(TokenSequence())
            result.sequences[-1].append_context([1, 2, 3])
        sequence = result.sequences[-1]
        start = len(sequence)
        tokens = 0 if memory_reward is None else memory_tokens
        given_tokens = int(prefilled and tokens > 0)
        sequence.append_context([7] * given_tokens)
        own = tokens - given_tokens
        kinds = [SpanKind.MEMORY] * own + [SpanKind.THOUGHT, SpanKind.ACTION]
        sequence.append_policy([8] * len(kinds), [-1.0] * len(kinds), kinds)
        result.rounds.append(
            Round(
                number=number,
                sequence=len(result.sequences) - 1,
                snapshot_length=start,
                start=start,
                end=len(sequence),
                text="",
                memory_span=(start, start + tokens) if tokens else None,
                memory_reward=memory_reward,
            )
        )
        sequence.append_context([9, 9])
    return result


def rebuild(case: dict[str, Any]) -> list[Trajectory]:
    """The trajectories of one case: one group, without a prompt."""
    group = []
    for sample, row in enumerate(case["trajectories"]):
        built = Trajectory(Task("t", (Objective("q", ("g",)),)), 0, sample, prompt_length=0)
        built.reward = row["outcome"]
        sequence = TokenSequence()
        built.sequences.append(sequence)
        for number, r in enumerate(row["rounds"], start=1):
            start, tokens = r["start"], r["mem_tokens"] + r["other_tokens"]
            assert start == len(sequence)
            kinds = [SpanKind.MEMORY] * r["mem_tokens"] + [SpanKind.OTHER] * r["other_tokens"]
            sequence.append_policy([0] * tokens, [-1.0] * tokens, kinds)
            sequence.append_context([0] * r["observation_tokens"])
            span = (start, start + r["mem_tokens"]) if r["mem_tokens"] else None
            built.rounds.append(
                Round(
                    number=number,
                    sequence=0,
                    snapshot_length=start,
                    start=start,
                    end=start + tokens,
                    text="",
                    memory_span=span,
                    memory_reward=r["mem_reward"],
                )
            )
        assert sequence.mask == row["policy_mask"]
        assert len(sequence) == row["length"]
        group.append(built)
    return group


@pytest.mark.parametrize("case", load_cases("advantages.json"))
def test_cases(case: dict[str, Any]) -> None:
    group = rebuild(case)
    assert case["eps"] == 1e-6
    assign_advantages(group, OUTCOME, MemoryConfig(std_floor=case["std_floor"]))
    for built, row in zip(group, case["trajectories"], strict=True):
        assert built.outcome_advantage == pytest.approx(row["outcome_advantage"], abs=1e-6)
        assert built.sequences[0].advantages == pytest.approx(row["advantages"], abs=2e-6)
        for round_, r in zip(built.rounds, row["rounds"], strict=True):
            if "mem_advantage" in r:
                assert round_.memory_advantage == pytest.approx(r["mem_advantage"], abs=1e-6)
            else:
                assert round_.memory_advantage is None


# --- group_zscore ---------------------------------------------------------------------------


def test_zscore_by_hand() -> None:
    # mean 3; deviations -2, -1, 3; std = sqrt((4 + 1 + 9) / 2) = sqrt(7)
    scale = math.sqrt(7) + 1e-6
    assert zscore([1, 2, 6]) == pytest.approx([-2 / scale, -1 / scale, 3 / scale], abs=1e-14)
    assert zscore([1, 2, 6], std_floor=10.0) == pytest.approx(
        [-2 / (10 + 1e-6), -1 / (10 + 1e-6), 3 / (10 + 1e-6)], abs=1e-14
    )
    assert zscore([1, 2, 6], normalize_std=False) == [-2.0, -1.0, 3.0]


def test_zscore_keeps_groups_apart_in_any_order() -> None:
    values, groups = [1.0, 100.0, 2.0, 5.0, 300.0, 6.0], [4, -7, 4, 9, -7, 4]
    first, second = zscore([1.0, 2.0, 6.0]), zscore([100.0, 300.0])
    expected = [first[0], second[0], first[1], 0.0, second[1], first[2]]
    assert zscore(values, groups) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nemo_rl_4161_equal_values_are_exactly_zero(dtype: torch.dtype) -> None:
    for value in (0.1, 0.35, 1 / 3, 1e6 + 0.1):
        assert zscore([value] * 16, dtype=dtype) == [0.0] * 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nemo_rl_4161_seven_of_one_value_and_one_of_another(dtype: torch.dtype) -> None:
    # mean 0.425; variance (7 · 0.075² + 0.525²) / 7 = 0.045; std 0.2121320
    std = math.sqrt(0.045) + 1e-6
    result = zscore([0.35] * 7 + [0.95], dtype=dtype)
    assert result == pytest.approx([-0.075 / std] * 7 + [0.525 / std], abs=1e-6)
    assert len(set(result[:7])) == 1


def test_group_of_one_is_exactly_zero() -> None:
    assert zscore([0.7, 0.1, 0.3], [0, 1, 2]) == [0.0, 0.0, 0.0]
    assert zscore([0.7], normalize_std=False) == [0.0]


def test_verl_6348_tiny_differences_with_and_without_the_floor() -> None:
    # deviations ±5e-6, std 7.0710678e-6
    std = 1e-5 / math.sqrt(2)
    without = 5e-6 / (std + 1e-6)
    with_floor = 5e-6 / (1e-3 + 1e-6)
    assert without > 0.6
    assert zscore([0.5, 0.50001]) == pytest.approx([-without, without], rel=1e-9)
    assert zscore([0.5, 0.50001], std_floor=1e-3) == pytest.approx(
        [-with_floor, with_floor], rel=1e-9
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_zscore_refuses_values_that_are_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match=r"\[1\]"):
        zscore([0.0, bad])


def test_zscore_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\[N\]"):
        group_zscore(torch.zeros(3), torch.zeros(2), 0.0)
    with pytest.raises(ValueError, match="std_floor"):
        group_zscore(torch.zeros(3), torch.zeros(3), -1.0)


def test_zscore_of_nothing_and_of_integers() -> None:
    assert zscore([], []) == []
    result = group_zscore(torch.tensor([0, 1]), torch.tensor([0, 0]), 0.0)
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert result.tolist() == pytest.approx([-half, half], abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(0, 3)), min_size=1, max_size=24),
    st.sampled_from([0.0, 1e-3]),
)
def test_property_zscore_is_centred_and_bounded(
    rows: list[tuple[float, int]], floor: float
) -> None:
    values, groups = [v for v, _ in rows], [g for _, g in rows]
    result = zscore(values, groups, std_floor=floor)
    for group in set(groups):
        mine = [r for r, g in zip(result, groups, strict=True) if g == group]
        assert abs(sum(mine)) < 1e-6
        assert max(abs(r) for r in mine) <= (len(mine) - 1) / math.sqrt(len(mine)) + 1e-9


# --- assign_advantages ----------------------------------------------------------------------


def test_rllm_605_rewards_of_one_task_are_centred() -> None:
    group = [trajectory(reward, [], sample=i) for i, reward in enumerate([1.0, 0.0, 1.0, 0.0])]
    assign_advantages(group, OUTCOME, MEMORY)
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert [t.outcome_advantage for t in group] == pytest.approx([a, -a, a, -a], abs=1e-12)


def test_groups_are_tasks_within_an_epoch() -> None:
    rows = [(1.0, "a", 0), (0.0, "b", 0), (0.0, "a", 0), (0.0, "b", 0), (5.0, "a", 1)]
    group = [trajectory(reward, [], task=task) for reward, task, _ in rows]
    for built, (_, _, epoch) in zip(group, rows, strict=True):
        built.epoch = epoch
    assign_advantages(group, OUTCOME, MEMORY)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert [t.outcome_advantage for t in group] == pytest.approx([a, 0, -a, 0, 0], abs=1e-12)


@pytest.mark.parametrize("split", [False, True])
def test_relax_270_skyrl_1507_statistics_per_trajectory_values_on_every_round(split: bool) -> None:
    right = trajectory(1.0, [0.1, 0.1, 0.1, 0.1, 0.1], split=split)
    wrong = trajectory(0.0, [], sample=1, split=split)
    assign_advantages([right, wrong], OUTCOME, MEMORY)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)  # mean 0.5, not 6 / 7
    for built, expected in ((right, a), (wrong, -a)):
        assert built.outcome_advantage == pytest.approx(expected, abs=1e-12)
        for sequence in built.sequences:
            assert sequence.advantages is not None
            written = [expected if m else 0.0 for m in sequence.mask]
            assert sequence.advantages == pytest.approx(written, abs=1e-12)
    assert len(right.sequences) == (6 if split else 1)
    assert sum(sum(bool(a) for a in s.advantages or []) for s in right.sequences) == 6 * 2 + 5 * 2


def test_miles_700_rewards_are_normalized_before_they_are_added() -> None:
    group = [trajectory(1.0, [0.05]), trajectory(0.0, [0.0], sample=1)]
    assign_advantages(group, OUTCOME, MemoryConfig(weight=0.5, std_floor=0.0))
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    m = 0.025 / (0.05 / math.sqrt(2) + 1e-6)  # as large as the outcome's, whatever the scale
    assert group[0].rounds[1].memory_advantage == pytest.approx(m, abs=1e-12)
    # prompt 3, round 1 of 2 and observation 2, then memory 2, other 2, observation 2
    expected = [0.0] * 3 + [a] * 2 + [0.0] * 2 + [a + 0.5 * m] * 2 + [a] * 2 + [0.0] * 2
    assert group[0].sequences[0].advantages == pytest.approx(expected, abs=1e-12)


def test_prefilled_tag_carries_no_advantage() -> None:
    group = [trajectory(0.0, [0.4], prefilled=True), trajectory(0.0, [0.0], sample=1)]
    assign_advantages(group, OUTCOME, MEMORY)
    m = 0.2 / (0.4 / math.sqrt(2) + 1e-6)
    expected = [0.0] * 7 + [0.0, m] + [0.0] * 4
    assert group[0].sequences[0].advantages == pytest.approx(expected, abs=1e-12)


def test_pool_group_against_round() -> None:
    def group() -> list[Trajectory]:
        return [trajectory(0.0, [0.1, 0.5]), trajectory(0.0, [0.3, 0.9], sample=1)]

    pooled, apart = group(), group()
    assign_advantages(pooled, OUTCOME, MEMORY)
    assign_advantages(apart, OUTCOME, MemoryConfig(pool="round"))
    # 0.1, 0.5, 0.3, 0.9: mean 0.45; std = sqrt((0.1225 + 0.0025 + 0.0225 + 0.2025) / 3)
    std = math.sqrt(0.35 / 3) + 1e-6
    assert [r.memory_advantage for t in pooled for r in t.rounds if r.is_scored] == pytest.approx(
        [-0.35 / std, 0.05 / std, -0.15 / std, 0.45 / std], abs=1e-12
    )
    second, third = 0.1 / (0.2 / math.sqrt(2) + 1e-6), 0.2 / (0.4 / math.sqrt(2) + 1e-6)
    assert [r.memory_advantage for t in apart for r in t.rounds if r.is_scored] == pytest.approx(
        [-second, -third, second, third], abs=1e-12
    )


def test_length_penalty_acts_before_normalization_and_leaves_the_reward() -> None:
    group = [trajectory(0.0, [0.5], memory_tokens=50), trajectory(0.0, [0.5], sample=1)]
    assign_advantages(group, OUTCOME, MemoryConfig(length_penalty=0.5))
    # penalties 0.5 · 50 / 100 = 0.25 and 0.5 · 2 / 100 = 0.01: half the difference is 0.12
    m = 0.12 / (0.24 / math.sqrt(2) + 1e-6)
    assert [t.rounds[1].memory_advantage for t in group] == pytest.approx([-m, m], abs=1e-12)
    assert [t.rounds[1].memory_reward for t in group] == [0.5, 0.5]


def memory_advantages(group: list[Trajectory]) -> list[float | None]:
    return [r.memory_advantage for t in group for r in t.rounds if r.is_scored]


def credited(*rows: list[float | None], reward: float = 0.0, **settings: Any) -> list[float | None]:
    """The memory advantages of a group with these memory rewards, not divided by a deviation."""
    group = [trajectory(reward, row, sample=i) for i, row in enumerate(rows)]
    before = [[r.memory_reward for r in t.rounds] for t in group]
    assign_advantages(group, OUTCOME, MemoryConfig(normalize_std=False, **settings))
    assert [[r.memory_reward for r in t.rounds] for t in group] == before
    return memory_advantages(group)


def test_gamma_adds_the_discounted_rewards_of_later_memories() -> None:
    # 0.4 is the last: itself. 0.2 + 0.5 · 0.4 = 0.4. 0.1 + 0.5 · 0.2 + 0.25 · 0.4 = 0.3.
    # The other trajectory's -0.5 stays alone. Mean (0.3 + 0.4 + 0.4 - 0.5) / 4 = 0.15.
    assert credited([0.1, 0.2, 0.4], [-0.5], gamma=0.5) == pytest.approx(
        [0.15, 0.25, 0.25, -0.65], abs=1e-12
    )
    # gamma 1: sums 0.7, 0.6, 0.4; mean (1.7 - 0.5) / 4 = 0.3
    assert credited([0.1, 0.2, 0.4], [-0.5], gamma=1.0) == pytest.approx(
        [0.4, 0.3, 0.1, -0.8], abs=1e-12
    )


def test_gamma_passes_over_rounds_without_a_memory() -> None:
    # Rounds 2 and 5 hold memories: 0.2 + 0.5 · 0.4 = 0.4 and 0.4, whatever lies between them.
    apart = credited([0.2, None, None, 0.4], [0.0], gamma=0.5)
    assert apart == credited([0.2, 0.4], [0.0], gamma=0.5)
    assert apart == pytest.approx([0.4 / 3, 0.4 / 3, -0.8 / 3], abs=1e-12)


def test_gamma_with_pools_by_round() -> None:
    # First: 0.1 + 0.5 · 0.5 = 0.35, 0.5. Second: 0.3 + 0.5 · 0.9 = 0.75, 0.9.
    # Round 2: mean 0.55. Round 3: mean 0.7.
    assert credited([0.1, 0.5], [0.3, 0.9], gamma=0.5, pool="round") == pytest.approx(
        [-0.2, -0.2, 0.2, 0.2], abs=1e-12
    )
    # In one pool: mean of 0.35, 0.5, 0.75, 0.9 is 0.625.
    assert credited([0.1, 0.5], [0.3, 0.9], gamma=0.5) == pytest.approx(
        [-0.275, -0.125, 0.125, 0.275], abs=1e-12
    )
    # A pool by round holds the memory's own round: the first has no fellow in round 4.
    assert credited([0.1, None, 0.5], [0.3, 0.9], gamma=0.5, pool="round") == pytest.approx(
        [-0.2, 0.0, 0.2, 0.0], abs=1e-12
    )


def test_gamma_counts_the_length_penalty_of_later_memories() -> None:
    # 2 tokens at 10 per 100: 0.2 off each. 0.3, and 0.2 + 0.5 · 0.3 = 0.35. Mean of 3 with
    # 0 - 0.2 = -0.2: 0.15.
    assert credited([0.4, 0.5], [0.0], gamma=0.5, length_penalty=10.0) == pytest.approx(
        [0.2, 0.15, -0.35], abs=1e-12
    )


def test_gamma_with_skipped_outcomes() -> None:
    """What is skipped keeps its place in the statistics."""
    group = [trajectory(1.0, [0.2, 0.4]), trajectory(0.0, [0.0, 0.4], sample=1)]
    settings = MemoryConfig(gamma=0.5, normalize_std=False, only_if_outcome_nonnegative=True)
    assign_advantages(group, OUTCOME, settings)
    # 0.4, 0.4 and 0.2, 0.4: mean 0.35
    assert memory_advantages(group) == pytest.approx([0.05, 0.05, 0.0, 0.0], abs=1e-12)


def test_without_gamma_nothing_changes_by_a_bit() -> None:
    """Against section 7 as it was: each reward by itself."""
    rows: list[list[float | None]] = [[0.1, 0.7, -0.3], [1 / 3, None, 1e-9], [-0.2]]
    group = [trajectory(0.0, row, sample=i) for i, row in enumerate(rows)]
    assign_advantages(group, OUTCOME, MEMORY)
    alone = zscore([0.1, 0.7, -0.3, 1 / 3, 1e-9, -0.2], std_floor=1e-3)
    assert memory_advantages(group) == alone


def test_only_if_outcome_nonnegative_skips_losing_trajectories() -> None:
    group = [trajectory(1.0, [0.0]), trajectory(0.0, [0.4], sample=1)]
    assign_advantages(group, OUTCOME, MemoryConfig(only_if_outcome_nonnegative=True))
    m = 0.2 / (0.4 / math.sqrt(2) + 1e-6)
    assert [t.rounds[1].memory_advantage for t in group] == pytest.approx([-m, 0.0], abs=1e-12)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    losing = group[1].sequences[0]
    assert losing.advantages == pytest.approx([-a if p else 0.0 for p in losing.mask], abs=1e-12)


def test_outcome_without_std() -> None:
    group = [trajectory(1.0, []), trajectory(0.0, [], sample=1)]
    assign_advantages(group, OutcomeConfig(normalize_std=False), MEMORY)
    assert [t.outcome_advantage for t in group] == [0.5, -0.5]


def test_weight_zero_needs_no_memory_reward() -> None:
    group = [trajectory(1.0, [0.3]), trajectory(0.0, [0.2], sample=1)]
    group[0].rounds[1] = replace(group[0].rounds[1], memory_reward=None)
    assign_advantages(group, OUTCOME, MemoryConfig(weight=0.0))
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert group[0].rounds[1].memory_advantage is None
    mask = group[0].sequences[0].mask
    assert group[0].sequences[0].advantages == pytest.approx([a * m for m in mask], abs=1e-12)


def test_missing_rewards_are_errors_that_name_their_place() -> None:
    group = [trajectory(1.0, [0.3]), trajectory(0.0, [0.2], sample=1)]
    group[1].rounds[1] = replace(group[1].rounds[1], memory_reward=None)
    with pytest.raises(ValueError, match=r"round 2 of task t, epoch 0, sample 1"):
        assign_advantages(group, OUTCOME, MEMORY)
    assert group[0].outcome_advantage is None
    assert group[0].sequences[0].advantages is None
    with pytest.raises(ValueError, match=r"reward of task t, epoch 0, sample 0 was never"):
        assign_advantages([trajectory(None, [])], OUTCOME, MEMORY)
    with pytest.raises(ValueError, match=r"reward of round 2 .* is nan"):
        assign_advantages([trajectory(0.0, [math.nan])], OUTCOME, MEMORY)


def test_assigning_twice_changes_nothing() -> None:
    group = [trajectory(1.0, [0.3]), trajectory(0.0, [0.2], sample=1)]
    assign_advantages(group, OUTCOME, MEMORY)
    first = [list(s.advantages or []) for t in group for s in t.sequences]
    assign_advantages(group, OUTCOME, MEMORY)
    assert [s.advantages for t in group for s in t.sequences] == first


def test_an_outcome_advantage_of_exactly_zero_keeps_its_memory_advantage() -> None:
    """Equal rewards: no outcome advantage is negative, so no memory advantage is skipped."""
    group = [trajectory(1.0, [value], sample=sample) for sample, value in enumerate((0.2, 0.6))]
    assign_advantages(group, OUTCOME, replace(MEMORY, only_if_outcome_nonnegative=True))
    assert [member.outcome_advantage for member in group] == [0.0, 0.0]
    expected = 0.2 / (math.sqrt(0.08) + 1e-6)
    assert [member.rounds[1].memory_advantage for member in group] == pytest.approx(
        [-expected, expected]
    )
