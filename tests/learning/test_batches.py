"""Micro-batches of token sequences (specification section 8)."""

from __future__ import annotations

import math
import random
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import LossConfig
from mempo.learning.batches import Batch, collate, pad_rows
from mempo.learning.loss import LossInputs, aggregation_weights, policy_loss
from mempo.learning.micro_batches import (
    TrainingRow,
    is_sharing_worth_it,
    plan_micro_batches,
    shared_start,
)
from mempo.training.epoch_dataset import EpochDataset
from mempo.trajectory import Objective, SpanKind, Task, TokenSequence, Trajectory

TASK = Task("t9", (Objective("Who?", ("Ann",)),))


def make_row(length: int, policy: int = 1, sample: int = 0, weight: float = 0.25) -> TrainingRow:
    """A row whose last ``policy`` tokens are the policy's, with advantage 1."""
    sequence = TokenSequence()
    sequence.append_context(list(range(1, length - policy + 1)))
    sequence.append_policy(
        [50 + i for i in range(policy)], [-0.5] * policy, [SpanKind.ACTION] * policy
    )
    sequence.advantages = [0.0] * (length - policy) + [1.0] * policy
    return TrainingRow(Trajectory(TASK, 2, sample, 1, [sequence]), sequence, weight)


@given(st.lists(st.integers(2, 40), max_size=20), st.integers(1, 120))
def test_the_plan_keeps_the_budget_and_every_row(lengths: list[int], budget: int) -> None:
    rows = [make_row(length, sample=i) for i, length in enumerate(lengths)]
    plan = plan_micro_batches(rows, budget)
    assert sorted(id(row) for batch in plan for row in batch) == sorted(map(id, rows))
    for batch in plan:
        assert batch
        width = max(len(row.sequence) for row in batch)
        assert len(batch) == 1 or len(batch) * width <= budget
    order = [len(row.sequence) for batch in plan for row in batch]
    assert order == sorted(lengths, reverse=True)


def names_of(batch: Batch) -> tuple[str, ...]:
    return tuple(row.trajectory.name for row in batch.rows)


def test_a_plan_worked_out_by_hand() -> None:
    rows = [make_row(length) for length in (3, 9, 5, 4, 10, 2)]
    plan = plan_micro_batches(rows, 20)
    assert [[len(row.sequence) for row in batch] for batch in plan] == [[10, 9], [5, 4, 3, 2]]
    assert [len(batch) for batch in plan_micro_batches(rows, 1)] == [1] * 6


def test_collate_pads_on_the_right() -> None:
    batch = collate([make_row(4, 2, 0, 0.5), make_row(2, 1, 1, 0.25)], last_of_update=True)
    assert batch.ids.tolist() == [[1, 2, 50, 51], [1, 50, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.mask.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert batch.advantages.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]
    assert batch.weights.tolist() == [[0, 0, 0.5, 0.5], [0, 0.25, 0, 0]]
    assert batch.engine_logprobs.tolist() == [[0, 0, -0.5, -0.5], [0, -0.5, 0, 0]]
    assert batch.old_logprobs is None
    assert names_of(batch) == ("task t9, epoch 2, sample 0", "task t9, epoch 2, sample 1")
    assert batch.last_of_update
    moved = batch.to(torch.device("cpu"))
    assert names_of(moved) == names_of(batch)
    assert torch.equal(moved.ids, batch.ids)


def test_old_logprobs_of_all_rows_or_of_none() -> None:
    rows = [make_row(3, 1, 0), make_row(2, 1, 1)]
    rows[0].sequence.old_logprobs = [0.0, 0.0, -0.75]
    with pytest.raises(ValueError, match="task t9, epoch 2, sample 1 has no old log-prob"):
        collate(rows, False)
    rows[1].sequence.old_logprobs = [0.0, -0.25]
    batch = collate(rows, False)
    assert batch.old_logprobs is not None
    assert batch.old_logprobs.tolist() == [[0, 0, -0.75], [0, -0.25, 0]]


def test_no_rows_give_one_row_whose_loss_is_0() -> None:
    batch = collate([], False)
    assert batch.ids.shape == (1, 2)
    assert batch.attention_mask.tolist() == [[1, 0]]
    assert not batch.mask.any()
    assert not batch.weights.any()
    assert names_of(batch) == ()
    assert batch.old_logprobs is None
    assert pad_rows([]).ids.shape == (1, 2)


def test_a_row_that_was_not_scored_is_an_error() -> None:
    row = make_row(4)
    row.sequence.advantages = None
    with pytest.raises(ValueError, match="sample 0 has no advantages: it was not scored"):
        collate([make_row(3, sample=7), row], False)


def test_an_advantage_off_the_policy_is_an_error() -> None:
    row = make_row(4, sample=3)
    assert row.sequence.advantages is not None
    row.sequence.advantages[1] = 0.1
    with pytest.raises(
        ValueError, match="sample 3, position 1: there is an advantage, but this is"
    ):
        collate([row], False)


@pytest.mark.parametrize("field", ["mask", "logprobs", "advantages", "ids"])
def test_lists_of_different_length_are_an_error(field: str) -> None:
    row = make_row(4)
    getattr(row.sequence, field).append(0)
    with pytest.raises(ValueError, match="have lengths"):
        collate([row], False)


# The split does not change the loss


def loss_of(batch: Batch, current: dict[int, float]) -> torch.Tensor:
    """The policy loss with the log-probability of each token looked up by its id."""
    logprobs = torch.tensor([[current.get(int(i), -9.0) for i in row] for row in batch.ids])
    inputs = LossInputs(
        logprobs.double(),
        batch.old_logprobs,
        batch.advantages,
        batch.mask,
        batch.weights,
        engine_logprobs=batch.engine_logprobs,
    )
    return policy_loss(inputs, LossConfig())[0]


def random_rows(
    rng: random.Random, aggregation: str
) -> tuple[list[TrainingRow], dict[int, float], float]:
    """Rows with random masks and numbers, and the loss of all, summed in plain Python."""
    token, total = 100, 0.0
    current: dict[int, float] = {}
    drafts: list[list[tuple[float, float, float]]] = []
    for _ in range(rng.randint(1, 7)):
        drafts.append(
            [
                (rng.gauss(0, 1), rng.uniform(-2, -0.1), rng.uniform(-2, -0.1))
                for _ in range(rng.randint(1, 9))
            ]
        )
    counts = [len(draft) for draft in drafts]
    rows = []
    for sample, draft in enumerate(drafts):
        if aggregation == "token_mean":
            weight = 1.0 / sum(counts)
        else:
            weight = 1.0 / len(draft) / len(drafts)
        sequence = TokenSequence()
        sequence.append_context([1, 2])
        sequence.advantages, sequence.old_logprobs = [0.0, 0.0], [0.0, 0.0]
        for advantage, old, new in draft:
            if rng.random() < 0.4:  # an observation between policy tokens
                sequence.append_context([3])
                sequence.advantages.append(0.0)
                sequence.old_logprobs.append(0.0)
            token += 1
            current[token] = new
            sequence.append_policy([token], [old], [SpanKind.ACTION])
            sequence.advantages.append(advantage)
            sequence.old_logprobs.append(old)
            ratio = math.exp(new - old)
            worse = max(-ratio * advantage, -min(max(ratio, 0.8), 1.2) * advantage)
            total += weight * (min(worse, -3.0 * advantage) if advantage < 0 else worse)
        rows.append(TrainingRow(Trajectory(TASK, 0, sample, 2, [sequence]), sequence, weight))
    assert [row.token_weight for row in rows] == pytest.approx(
        aggregation_weights(counts, aggregation)  # type: ignore[arg-type]
    )
    return rows, current, total


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.sampled_from(["token_mean", "trajectory_mean"]),
)
def test_prime_rl_2562_any_split_gives_one_loss(seed: int, budget: int, aggregation: str) -> None:
    rows, current, total = random_rows(random.Random(seed), aggregation)
    whole = float(loss_of(collate(rows, True), current))
    parts = [collate(batch, False) for batch in plan_micro_batches(rows, budget)]
    parts.append(collate([], True))  # a rank without rows of its own
    split = sum(float(loss_of(part, current)) for part in parts)
    assert whole == pytest.approx(total, abs=1e-6)
    assert split == pytest.approx(total, abs=1e-6)


def epoch_rows(lengths: list[int], constant: set[int]) -> list[TrainingRow]:
    rows = [make_row(length, sample=index) for index, length in enumerate(lengths)]
    for index in constant:
        rows[index].sequence.advantages = [0.0] * lengths[index]
    return rows


def test_constant_groups_cost_no_update() -> None:
    """Lengths 10, 9, 8, 5, 4 under 20 tokens are three micro-batches; without the 9, the 8 and
    the 4 one is enough, and it comes last, where the optimizer steps."""
    rows = epoch_rows([10, 9, 8, 5, 4], {1, 2, 4})
    every = EpochDataset([rows], [3], 20, skip_zeros=False, share_prompts=[False])
    assert [names_of(every[index]) for index in range(3)] == [
        (rows[0].trajectory.name, rows[1].trajectory.name),
        (rows[2].trajectory.name, rows[3].trajectory.name),
        (rows[4].trajectory.name,),
    ]
    trained = EpochDataset(
        [rows, rows[1:3]], [3, 1], 20, skip_zeros=True, share_prompts=[False, False]
    )
    assert len(trained) == 4
    batches = [trained[index] for index in range(4)]
    assert [len(names_of(batch)) for batch in batches] == [0, 0, 2, 1]
    assert names_of(batches[2]) == (rows[0].trajectory.name, rows[3].trajectory.name)
    assert [batch.last_of_update for batch in batches] == [False, False, True, True]
    # A step without any other row keeps its shortest: the mismatch is always measured.
    assert names_of(batches[3]) == (rows[2].trajectory.name,)
    # A trained token weighs the same, whatever else is trained.
    assert batches[2].weights.sum() == 2 * 0.25


@given(st.lists(st.tuples(st.integers(2, 40), st.booleans()), max_size=20), st.integers(1, 120))
def test_leaving_rows_out_never_needs_more_micro_batches(
    shapes: list[tuple[int, bool]], budget: int
) -> None:
    lengths = [length for length, _ in shapes]
    rows = epoch_rows(lengths, {index for index, (_, zero) in enumerate(shapes) if zero})
    count = max(1, len(plan_micro_batches(rows, budget)))
    dataset = EpochDataset([rows], [count], budget, skip_zeros=True, share_prompts=[False])
    names = [name for index in range(len(dataset)) for name in names_of(dataset[index])]
    expected = [
        row.trajectory.name for row, (_, zero) in zip(rows, shapes, strict=True) if not zero
    ]
    if rows and not expected:
        expected = [min(rows, key=lambda row: len(row.sequence)).trajectory.name]
    assert sorted(names) == sorted(expected)


def test_rows_that_were_never_scored_are_not_taken_for_constant_ones() -> None:
    rows = epoch_rows([4, 5], {0})
    rows[1].sequence.advantages = None
    dataset = EpochDataset([rows], [1], 100, skip_zeros=True, share_prompts=[False])
    with pytest.raises(ValueError, match="was not scored"):
        dataset[0]


def prompt_rows(shapes: list[tuple[int, int]], prompt: int) -> list[TrainingRow]:
    """Rows of (task, length after the prompt), each task with a prompt of its own; the token after
    the prompt is context, and the rest the policy's."""
    rows = []
    for sample, (task, own) in enumerate(shapes):
        sequence = TokenSequence()
        sequence.append_context([100 + task] * prompt + [sample])
        sequence.append_policy(
            [sample] * (own - 1), [-0.5] * (own - 1), [SpanKind.ACTION] * (own - 1)
        )
        sequence.advantages = [0.0] * (prompt + 1) + [1.0] * (own - 1)
        trajectory = Trajectory(TASK, 2, sample, prompt, [sequence])
        rows.append(TrainingRow(trajectory, sequence, 0.25))
    return rows


def test_a_plan_that_shares_prompts_worked_out_by_hand() -> None:
    """Prompts of 10 tokens: 10 + 2 * 8 = 26 fill a budget of 26, and a third row of 8 does not."""
    rows = prompt_rows([(0, 8), (1, 5), (0, 7), (1, 4), (0, 6), (1, 2)], 10)
    plan = plan_micro_batches(rows, 26, share_prompts=True)
    assert [[row.trajectory.sample for row in batch] for batch in plan] == [[0, 2], [4], [1, 3, 5]]
    assert [collate(batch, False, share_prompts=True).shared for batch in plan] == [10, 0, 10]
    assert [collate(batch, False).shared for batch in plan] == [0, 0, 0]


def test_only_what_predicts_no_policy_token_is_shared() -> None:
    """The token before the first of the policy's predicts it, whether all rows have it or not."""
    rows = [make_row(6, 3, sample=0), make_row(6, 2, sample=1)]  # 1 2 3 50.., 1 2 3 4 50..
    assert shared_start(rows) == 2
    assert shared_start(rows[1:] * 2) == 3
    assert shared_start(rows[:1]) == 0
    assert shared_start([rows[0], *prompt_rows([(0, 3)], 4)]) == 0


def test_sharing_is_worth_it_where_it_leaves_nine_tenths_of_the_tokens() -> None:
    """Four rows of prompt 10 and 65 others: 300 tokens, 270 with one prompt. With 66: 304, 274."""
    assert is_sharing_worth_it(prompt_rows([(0, 65)] * 4, 10), 1000)
    assert not is_sharing_worth_it(prompt_rows([(0, 66)] * 4, 10), 1000)
    # Each of four tasks has a row: nothing is shared.
    assert not is_sharing_worth_it(prompt_rows([(n, 3) for n in range(4)], 10), 1000)
    assert not is_sharing_worth_it([], 1000)


def samples(plan: list[list[TrainingRow]]) -> list[list[int]]:
    return [[row.trajectory.sample for row in batch] for batch in plan]


def test_a_packed_plan_worked_out_by_hand() -> None:
    """Prompts of 11 tokens, of which 10 are shared. Whole rows of 18, 17, 16, 15, 14 and 12 tokens
    are 92; padded, five of them are 90 and six 108. With prompts once, 10 + 8 + 7 + 6 is 31."""
    rows = prompt_rows([(0, 8), (1, 5), (0, 7), (1, 4), (0, 6), (1, 2)], 10)
    assert samples(plan_micro_batches(rows, 92, packed=True)) == [[0, 2, 4, 1, 3, 5]]
    assert samples(plan_micro_batches(rows, 91, packed=True)) == [[0, 2, 4, 1, 3], [5]]
    assert samples(plan_micro_batches(rows, 92)) == [[0, 2, 4, 1, 3], [5]]
    shared = plan_micro_batches(rows, 31, share_prompts=True, packed=True)
    assert samples(shared) == [[0, 2, 4], [1, 3, 5]]
    assert samples(plan_micro_batches(rows, 30, True, True)) == [[0, 2], [4], [1, 3, 5]]
    batch = collate(shared[0], False, share_prompts=True, packed=True)
    assert (batch.packed, batch.shared, batch.ids.shape) == (True, 10, (3, 18))


def test_whether_sharing_is_worth_it_counts_padding_only_where_it_is_computed() -> None:
    """A shared start of 10 before 100, 2, 2 and 2 tokens: padded 440 tokens and 410 are too near;
    packed 146 and 116 are not."""
    rows = prompt_rows([(0, 100), (0, 2), (0, 2), (0, 2)], 10)
    assert not is_sharing_worth_it(rows, 1000)
    assert is_sharing_worth_it(rows, 1000, packed=True)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(2, 30), st.booleans()), max_size=16),
    st.integers(1, 120),
    st.integers(1, 12),
    st.booleans(),
)
def test_leaving_rows_out_of_a_packed_plan_never_makes_it_longer(
    shapes: list[tuple[int, int, bool]], budget: int, prompt: int, share: bool
) -> None:
    rows = prompt_rows([(task, own) for task, own, _ in shapes], prompt)
    plan = plan_micro_batches(rows, budget, share, packed=True)
    for batch in plan:
        shared = collate(batch, False, share, packed=True).shared
        own = sum(len(row.sequence) - shared for row in batch)
        assert len(batch) == 1 or shared + own <= budget
    assert sorted(chain.from_iterable(samples(plan))) == list(range(len(rows)))
    some = [row for row, (_, _, kept) in zip(rows, shapes, strict=True) if kept]
    assert len(plan_micro_batches(some, budget, share, packed=True)) <= len(plan)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(2, 30), st.booleans()), max_size=16),
    st.integers(1, 120),
    st.integers(1, 12),
)
def test_leaving_rows_out_of_a_sharing_plan_never_makes_it_longer(
    shapes: list[tuple[int, int, bool]], budget: int, prompt: int
) -> None:
    rows = prompt_rows([(task, own) for task, own, _ in shapes], prompt)
    plan = plan_micro_batches(rows, budget, share_prompts=True)
    for batch in plan:
        assert len({row.prompt for row in batch}) == 1
        longest = len(batch[0].sequence)
        assert longest == max(len(row.sequence) for row in batch)
        assert len(batch) == 1 or prompt + len(batch) * (longest - prompt) <= budget
    assert sorted(row.trajectory.sample for batch in plan for row in batch) == list(
        range(len(rows))
    )
    some = [row for row, (_, _, kept) in zip(rows, shapes, strict=True) if kept]
    assert len(plan_micro_batches(some, budget, share_prompts=True)) <= len(plan)
