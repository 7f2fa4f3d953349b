"""The memory reward (specification section 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.config import MemoryConfig, OutcomeConfig, ScoringConfig
from mempo.learning.advantages import assign_advantages
from mempo.learning.gold_choice import gold_texts
from mempo.learning.memory_rewards import Scored, write_reward
from mempo.learning.scored_rows import ScoredText, encode_answer, score_padded
from mempo.learning.scoring import MemoryScorer, answer_probability
from mempo.trajectory import Objective, Round, SpanKind, Task, TokenSequence, Trajectory
from tests.support.cases_path import load_cases
from tests.support.small_tokenizers import TOKENIZERS, make_conversation, make_tokenizer

FILLED = "\n<think>I can answer now.</think>\n<answer>\n{}\n</answer>"
TASK = Task("t7", (Objective("Who?", ("Ann", "Anna Bo")), Objective("Where?", ("Rome",))))


@pytest.mark.parametrize("case", load_cases("memory_reward.json"))
def test_answer_probability_cases(case: dict[str, Any]) -> None:
    mask = torch.tensor(case["answer_mask"])
    full, memory = (
        float(
            answer_probability(
                torch.tensor(case[key], dtype=torch.float64),
                mask,
                case["threshold"],
                case["empty"],
            )
        )
        for key in ("full_logp", "mem_logp")
    )
    assert full == pytest.approx(case["p_full"], abs=1e-8)
    assert memory == pytest.approx(case["p_mem"], abs=1e-8)
    assert memory - full == pytest.approx(case["mem_reward"], abs=1e-8)


def test_answer_probability_of_several_rows() -> None:
    logp = torch.log(torch.tensor([[0.5, 0.25, 0.9], [0.2, 0.2, 0.8]]))
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    expected = torch.tensor([math.sqrt(0.125), 0.4])
    torch.testing.assert_close(answer_probability(logp, mask, None, "unfiltered"), expected)


def test_the_reference_gives_1_where_nothing_is_kept() -> None:
    """The released code's degenerate case: the worse every token, the better the score."""
    logp = torch.log(torch.tensor([0.01, 0.02]))
    mask = torch.ones(2)
    assert float(answer_probability(logp, mask, math.log(0.5), "one")) == 1.0
    fallback = float(answer_probability(logp, mask, math.log(0.5), "unfiltered"))
    assert fallback == pytest.approx(math.sqrt(0.0002), rel=1e-6)
    with pytest.raises(ValueError, match="empty='two'"):
        answer_probability(logp, mask, None, "two")


# The scored text


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("gold", ["Ann", "Ann; Rome", "{gold} {filler} {0}", "é🐙", "1"])
def test_the_answer_mask_covers_the_gold_text_only(kind: str, gold: str) -> None:
    conversation = make_conversation(kind)
    text = encode_answer(make_tokenizer(kind), ScoringConfig(), gold)
    ids = list(text.ids)
    assert conversation.decode(ids) == FILLED.format(gold)
    assert ids == conversation.encode(FILLED.format(gold))
    first, last = text.mask.index(1), len(text.mask) - 1 - text.mask[::-1].index(1)
    assert text.mask[first : last + 1] == (1,) * (last + 1 - first)
    assert gold in conversation.decode(ids[first : last + 1])
    # Without its first or its last token the gold text is not whole.
    assert gold not in conversation.decode(ids[first + 1 : last + 1])
    assert gold not in conversation.decode(ids[first:last])
    assert conversation.decode(ids[:first]) in FILLED.format(gold).split(gold)[0] + gold
    if kind == "bytes":
        assert sum(text.mask) == len(gold.encode())


def test_a_gold_answer_without_a_token_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="no token of its own"):
        encode_answer(make_tokenizer("tags"), ScoringConfig(), "")


def test_gold_texts() -> None:
    assert gold_texts(TASK, "first") == ["Ann; Rome"]
    assert gold_texts(TASK, "best") == ["Ann; Rome", "Anna Bo; Rome"]
    many = Task("m", tuple(Objective("?", tuple(f"{i}{j}" for j in range(5))) for i in range(3)))
    tried = gold_texts(many, "best")
    assert tried[:6] == [f"0{j}; 10; 20" for j in range(5)] + ["00; 11; 20"]
    assert len(tried) == len(set(tried)) == 13  # 1 + 3 · 4


# The scorer against one forward pass for each context, without padding


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(make_tokenizer("tags")),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.3,
        )
    ).eval()


def make_trajectory(task: Task = TASK, sample: int = 0) -> Trajectory:
    """Three rounds: the second with a prefilled memory, the third without a memory."""
    conversation = make_conversation("tags")
    prompt = conversation.prompt_ids("Who? Where?" + " Tell me." * sample)
    trajectory = Trajectory(task, 4, sample, len(prompt), [TokenSequence()])
    sequence = trajectory.sequences[0]
    sequence.append_context(prompt)
    texts = (
        ("", "", "<search>Ann</search>"),
        ("<mem>", "Ann is in Rome</mem>", "<search>Rome</search>"),
        ("", "<mem>Ann; Rome</mem>", "<think>so</think><search>Bob</search>"),
        ("", "", "<answer>Ann; Rome</answer>"),
    )
    for number, (given, memory, rest) in enumerate(texts, start=1):
        snapshot = len(sequence)
        sequence.append_context(conversation.encode(given))
        ids = conversation.encode(memory)
        sequence.append_policy(ids, [-1.0] * len(ids), [SpanKind.MEMORY] * len(ids))
        end_of_memory = len(sequence)
        ids = conversation.encode(rest)
        sequence.append_policy(ids, [-1.0] * len(ids), [SpanKind.ACTION] * len(ids))
        span = (snapshot, end_of_memory) if memory else None
        round_ = Round(
            number, 0, snapshot, snapshot, len(sequence), given + memory + rest, memory_span=span
        )
        trajectory.rounds.append(round_)
        sequence.append_context(conversation.observation_ids("<information>Bob</information>"))
    return trajectory


@torch.no_grad()
def plain_logprobs(model: Any, context: list[int], text: list[int]) -> Tensor:
    ids = torch.tensor([context + text])
    distribution = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=-1)
    return torch.stack([distribution[len(context) + i - 1, token] for i, token in enumerate(text)])


def plain_contexts(trajectory: Trajectory, number: int) -> tuple[list[int], list[int]]:
    """Full history and memory context of a round, put together from texts."""
    conversation = make_conversation("tags")
    round_ = trajectory.rounds[number - 1]
    ids = trajectory.sequences[0].ids
    memory = round_.text.split("</mem>")[0] + "</mem>"
    return ids[: round_.start], ids[: trajectory.prompt_length] + conversation.encode(memory)


def plain_answer(gold: str) -> tuple[list[int], list[int]]:
    """Ids and indices of the gold's tokens; in this tokenizer lines break tokens."""
    conversation = make_conversation("tags")
    head, tail = FILLED.split("{}")
    before, middle = (conversation.encode(part) for part in (head, gold))
    ids = conversation.encode(head + gold + tail)
    assert ids == [*before, *middle, *conversation.encode(tail)]
    return ids, list(range(len(before), len(before) + len(middle)))


@pytest.mark.parametrize("method", ["tree", "padded"])
@pytest.mark.parametrize("batch_tokens", [1, 300, 100_000])
def test_scores_equal_plain_ones(model: Any, batch_tokens: int, method: Any) -> None:
    trajectories = [make_trajectory(sample=0), make_trajectory(sample=3)]
    done: list[int] = []
    config = ScoringConfig(method=method, batch_tokens=batch_tokens)
    scorer = MemoryScorer(make_tokenizer("tags"), config)
    scorer.score(model, trajectories, done.append)
    assert sum(done) == 8
    ids, gold = plain_answer("Ann; Rome")
    for trajectory in trajectories:
        for number in (2, 3):
            round_ = trajectory.rounds[number - 1]
            full, memory = (
                math.exp(float(plain_logprobs(model, context, ids)[gold].mean()))
                for context in plain_contexts(trajectory, number)
            )
            assert abs(full - memory) > 1e-4
            assert round_.p_full == pytest.approx(full, abs=1e-5)
            assert round_.p_mem == pytest.approx(memory, abs=1e-5)
            assert round_.p_mem is not None
            assert math.log(round_.p_mem) == pytest.approx(math.log(memory), abs=1e-4)
            assert round_.memory_reward == pytest.approx(memory - full, abs=1e-5)
            assert (round_.kept_full, round_.kept_mem) == (1.0, 1.0)
        for number in (1, 4):
            assert trajectory.rounds[number - 1].memory_reward is None


class Fixed(torch.nn.Module):
    """Gives each token the probability ``choose(length of the row, index from its end)`` and all
    others the same share of the rest."""

    def __init__(self, choose: Any) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.head = torch.nn.Identity()
        self.choose = choose
        self.calls = 0

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        self.calls += 1
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        vocabulary = 1000
        logits = torch.zeros(*input_ids.shape, vocabulary)
        for row, ids in enumerate(input_ids):
            length = int(attention_mask[row].sum())
            for position in range(ids.shape[0] - 1):
                probability = self.choose(length, ids.shape[0] - 1 - position)
                # softmax gives the next id this probability among equal others
                odds = probability / (1.0 - probability)
                logits[row, position, ids[position + 1]] = math.log(odds * (vocabulary - 1))
        return SimpleNamespace(logits=self.head(logits))


def fixed_scores(config: ScoringConfig, full: list[float], memory: list[float]) -> Round:
    """Scores round 2 with given probabilities of the tokens of a two-token gold answer."""
    trajectory = make_trajectory(Task("t", (Objective("?", ("12",)),)))
    del trajectory.rounds[2:]
    ids, gold = plain_answer("12")
    assert len(gold) == 2
    contexts = plain_contexts(trajectory, 2)
    assert len(contexts[0]) != len(contexts[1])
    by_length = {
        len(context) + len(ids): dict(zip(gold, values, strict=True))
        for context, values in zip(contexts, (full, memory), strict=True)
    }

    def choose(length: int, from_end: int) -> float:
        return by_length.get(length, {}).get(len(ids) - from_end, 0.5)

    rows = replace(config, method="padded")  # the fixed model knows rows by their length
    MemoryScorer(make_tokenizer("tags"), rows).score(Fixed(choose), [trajectory])
    return trajectory.rounds[1]


def test_mask_full_keeps_for_both_what_passes_in_the_full_context() -> None:
    full, memory = [0.9, 0.1], [0.3, 0.8]
    separate = fixed_scores(ScoringConfig(threshold=0.5), full, memory)
    assert separate.p_full == pytest.approx(0.9, rel=1e-4)
    assert separate.p_mem == pytest.approx(0.8, rel=1e-4)
    shared = fixed_scores(ScoringConfig(threshold=0.5, mask="full"), full, memory)
    assert shared.p_full == pytest.approx(0.9, rel=1e-4)
    assert shared.p_mem == pytest.approx(0.3, rel=1e-4)
    assert shared.memory_reward == pytest.approx(-0.6, rel=1e-4)
    assert (shared.kept_full, shared.kept_mem) == (0.5, 0.5)
    everything = fixed_scores(ScoringConfig(), full, memory)
    assert everything.p_full == pytest.approx(0.3, rel=1e-4)
    assert everything.p_mem == pytest.approx(math.sqrt(0.24), rel=1e-4)


def test_the_gain_in_log_likelihood() -> None:
    """The same tokens as P, on the scale of log P."""
    full, memory = [0.9, 0.1], [0.3, 0.8]
    expected = {
        0.5 * math.log(0.24 / 0.09): ScoringConfig(),
        math.log(0.8 / 0.9): ScoringConfig(threshold=0.5),
        math.log(0.3 / 0.9): ScoringConfig(threshold=0.5, mask="full"),
    }
    for gain, config in expected.items():
        found = fixed_scores(replace(config, reward="log_probability"), full, memory)
        assert found.memory_reward == pytest.approx(gain, rel=1e-4)
        plain = fixed_scores(config, full, memory)
        assert (found.p_full, found.p_mem) == (plain.p_full, plain.p_mem)
        assert (found.kept_full, found.kept_mem) == (plain.kept_full, plain.kept_mem)
    empties: list[tuple[Any, float]] = [("one", 1.0), ("unfiltered", 0.01)]
    for empty, likelihood in empties:
        config = replace(ScoringConfig(threshold=0.5), empty=empty, reward="log_probability")
        useless = fixed_scores(config, [0.6, 0.6], [0.01, 0.01])
        assert useless.memory_reward == pytest.approx(math.log(likelihood / 0.6), rel=1e-4)


def test_the_gain_stays_finite_where_p_is_too_small_for_a_number() -> None:
    tiny = 1e-60
    found = fixed_scores(ScoringConfig(reward="log_probability"), [0.5, 0.5], [tiny, tiny])
    assert found.p_mem == 0.0
    assert found.memory_reward == pytest.approx(math.log(tiny) - math.log(0.5), rel=1e-4)
    found = fixed_scores(ScoringConfig(reward="log_probability"), [tiny, tiny], [tiny, 1e-50])
    assert (found.p_full, found.p_mem) == (0.0, 0.0)
    assert found.memory_reward == pytest.approx(5 * math.log(10), rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_an_impossible_answer_stops_the_run(bad: float, place: int) -> None:
    """P = 0 for certain is no number on the scale of log P, and a fault on either."""
    trajectory = make_trajectory()
    logp = [torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -1.0])]
    logp[place][1] = bad
    before, memory = (Scored(ScoredText((1, 2), (0, 1)), one) for one in logp)
    for config in (ScoringConfig(reward="log_probability"), ScoringConfig()):
        with pytest.raises(FloatingPointError, match="round 2 is not finite"):
            write_reward(trajectory, trajectory.rounds[1], before, memory, config)
    assert trajectory.rounds[1].memory_reward is None


def test_by_default_rewards_are_the_difference_of_p_by_the_bit(model: Any) -> None:
    """The float32 numbers of section 6, through the function that the cases hold."""
    trajectory = make_trajectory()
    scorer = MemoryScorer(make_tokenizer("tags"), ScoringConfig(method="padded"))
    scorer.score(model, [trajectory])
    rows = scorer.rows([trajectory])
    logps = score_padded(model, rows, 4096, lambda done: None, lambda own: own)
    p = [
        float(answer_probability(logp, torch.tensor(row.text.mask), None, "unfiltered"))
        for row, logp in zip(rows, logps, strict=True)
    ]
    assert [row.is_memory for row in rows] == [False, True] * 2
    second, third = trajectory.rounds[1:3]
    assert [second.p_full, second.p_mem, third.p_full, third.p_mem] == p
    assert [second.memory_reward, third.memory_reward] == [p[1] - p[0], p[3] - p[2]]
    assert (second.p_previous, third.p_previous) == (None, None)


# The memory before as the baseline


def fixed_chain(config: ScoringConfig, *contexts: list[float]) -> list[Round]:
    """Rounds 2 and 3, scored with given probabilities of the tokens of a two-token gold answer
    after the question alone, the memory of round 2 and that of round 3."""
    trajectory = make_trajectory(Task("t", (Objective("?", ("12",)),)))
    ids, gold = plain_answer("12")
    prompt = trajectory.sequences[0].ids[: trajectory.prompt_length]
    rows = [prompt, *(plain_contexts(trajectory, number)[1] for number in (2, 3))]
    by_length = {
        len(row) + len(ids): dict(zip(gold, values, strict=True))
        for row, values in zip(rows, contexts, strict=True)
    }
    assert len(by_length) == 3

    def choose(length: int, from_end: int) -> float:
        return by_length[length].get(len(ids) - from_end, 0.5)

    chain = replace(config, method="padded", baseline="previous")
    MemoryScorer(make_tokenizer("tags"), chain).score(Fixed(choose), [trajectory])
    return trajectory.rounds[1:3]


@pytest.mark.parametrize(
    ("config", "p", "rewards"),
    [
        # √(0.1 · 0.1), √(0.4 · 0.9), √(0.9 · 0.1)
        (ScoringConfig(), (0.1, 0.6, 0.3), (0.5, -0.3)),
        (
            ScoringConfig(reward="log_probability"),
            (0.1, 0.6, 0.3),
            (math.log(6.0), math.log(0.5)),
        ),
        # Each context by its own filter: no token, 0.9, 0.9.
        (ScoringConfig(threshold=0.5), (0.1, 0.9, 0.9), (0.8, 0.0)),
        (ScoringConfig(threshold=0.5, empty="one"), (1.0, 0.9, 0.9), (-0.1, 0.0)),
        (
            ScoringConfig(threshold=0.5, reward="log_probability"),
            (0.1, 0.9, 0.9),
            (math.log(9.0), 0.0),
        ),
    ],
)
def test_a_memory_is_paid_for_what_it_adds_or_loses(
    config: ScoringConfig, p: tuple[float, ...], rewards: tuple[float, ...]
) -> None:
    second, third = fixed_chain(config, [0.1, 0.1], [0.4, 0.9], [0.9, 0.1])
    assert (second.p_previous, second.p_mem) == pytest.approx(p[:2], rel=1e-4)
    assert (third.p_previous, third.p_mem) == pytest.approx(p[1:], rel=1e-4)
    assert third.p_previous == second.p_mem
    found = (second.memory_reward, third.memory_reward)
    assert found == pytest.approx(rewards, rel=1e-3, abs=1e-6)
    for one in (second, third):
        assert (one.p_full, one.kept_full) == (None, None)
        assert one.kept_mem == (1.0 if config.threshold is None else 0.5)


def test_undiscounted_gains_add_up_to_the_last_memory() -> None:
    """``scoring.baseline=previous`` with ``memory.gamma=1``: P after the last memory minus P
    before this one."""
    trajectory = make_trajectory(Task("t", (Objective("?", ("12",)),)))
    trajectory.reward = 0.0
    for place, one in enumerate(fixed_chain(ScoringConfig(), [0.1] * 2, [0.4, 0.9], [0.9, 0.1])):
        trajectory.rounds[1 + place].memory_reward = one.memory_reward
    settings = MemoryConfig(gamma=1.0, normalize_std=False)
    assign_advantages([trajectory], OutcomeConfig(), settings)
    # 0.3 - 0.1 = 0.2 and 0.3 - 0.6 = -0.3, less their mean of -0.05
    found = [trajectory.rounds[number].memory_advantage for number in (1, 2)]
    assert found == pytest.approx([0.25, -0.25], rel=1e-4)


def test_the_reference_rewards_a_memory_that_supports_nothing() -> None:
    config = ScoringConfig(threshold=0.5, empty="one")
    useless = fixed_scores(config, [0.6, 0.6], [0.01, 0.01])
    assert useless.p_mem == 1.0
    assert useless.kept_mem == 0.0
    assert useless.memory_reward == pytest.approx(0.4, rel=1e-4)


def test_gold_best_takes_the_alias_of_the_full_context_for_both(model: Any) -> None:
    trajectory = make_trajectory()
    MemoryScorer(make_tokenizer("tags"), ScoringConfig(gold="best")).score(model, [trajectory])
    for number in (2, 3):
        scores = []
        for gold in ("Ann; Rome", "Anna Bo; Rome"):
            ids, places = plain_answer(gold)
            scores.append(
                [
                    math.exp(float(plain_logprobs(model, context, ids)[places].mean()))
                    for context in plain_contexts(trajectory, number)
                ]
            )
        best = max(scores)
        assert scores[0] != pytest.approx(scores[1], rel=1e-3)
        assert trajectory.rounds[number - 1].p_full == pytest.approx(best[0], abs=1e-5)
        assert trajectory.rounds[number - 1].p_mem == pytest.approx(best[1], abs=1e-5)


def test_equal_rows_are_computed_once(model: Any) -> None:
    """Trajectories of a group that begin alike, or whose memories are the same."""
    config = ScoringConfig(method="padded", batch_tokens=1)  # one row in each batch
    counter = Fixed(lambda length, index: 0.5)
    done: list[int] = []
    scorer = MemoryScorer(make_tokenizer("tags"), config)
    scorer.score(counter, [make_trajectory() for _ in range(3)], done.append)
    assert counter.calls == 4
    assert done == [3] * 4
    alone, first, second = make_trajectory(), make_trajectory(), make_trajectory()
    MemoryScorer(make_tokenizer("tags"), ScoringConfig()).score(model, [alone])
    MemoryScorer(make_tokenizer("tags"), ScoringConfig()).score(model, [first, second])
    for number in (1, 2):
        expected = alone.rounds[number].p_full, alone.rounds[number].p_mem
        for other in (first, second):
            found = other.rounds[number].p_full, other.rounds[number].p_mem
            assert found == pytest.approx(expected, abs=1e-6)


def test_ranks_with_fewer_batches_run_empty_ones() -> None:
    tokenizer = make_tokenizer("tags")
    asked: list[int] = []

    def five(own: int) -> int:
        asked.append(own)
        return 5

    config = ScoringConfig(method="padded", batch_tokens=1)  # one row in each batch
    busy, idle = Fixed(lambda length, index: 0.5), Fixed(lambda length, index: 0.5)
    MemoryScorer(tokenizer, config, five).score(busy, [make_trajectory()])
    MemoryScorer(tokenizer, config, five).score(idle, [])
    assert asked == [4, 0]
    assert (busy.calls, idle.calls) == (5, 5)


@pytest.mark.parametrize(
    "config",
    [
        ScoringConfig(),
        ScoringConfig(threshold=0.5, empty="one"),
        ScoringConfig(threshold=0.5, mask="full"),
        ScoringConfig(gold="best"),
        ScoringConfig(baseline="previous"),
        ScoringConfig(baseline="previous", gold="best", reward="log_probability"),
    ],
)
def test_nan_stops_the_run_and_names_the_round(config: ScoringConfig) -> None:
    class Broken(Fixed):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits[:] = math.nan
            return output

    scorer = MemoryScorer(make_tokenizer("tags"), replace(config, method="padded"))
    with pytest.raises(FloatingPointError, match="task t7, epoch 4, sample 2, round 2 is not"):
        scorer.score(Broken(lambda length, index: 0.5), [make_trajectory(sample=2)])
