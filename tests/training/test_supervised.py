"""Supervised texts: their tokens, and the micro-batches of each rank (around section 4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import jinja2
import pytest

from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig, SftConfig
from mempo.demonstrations.demonstration import Demonstration, Turn
from mempo.demonstrations.encoding import TrainingText, encode_demonstration
from mempo.engine.interface import Sampling
from mempo.training.supervised import SftBatch, SftDataset
from mempo.trajectory import Objective, Task
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.small_tokenizers import TEMPLATES, TOKENIZERS, make_conversation

PAGES = {"Ann": "Ann was born in Rome. " * 20, "Rome": "Rome — a town 🐙."}
TEMPLATE = jinja2.Template("Use the tools. {{ question }}")
ROUNDS = (
    "<think>so</think><search>Ann</search>",
    "<mem>Ann: Rome</mem>\n<think>page</think><access>Rome</access>",
    "<mem>Ann: Rome, a town</mem><think>done</think><answer>Ann</answer>",
)
BUDGET = 120


# Tokens of a demonstration


def observations() -> list[Turn]:
    """What the tools say, before it is cut."""
    toolbox = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig())
    session = toolbox.session(Task("t", (Objective("Who?", ("Ann",)),)))
    results = [session.call("search", "Ann"), session.call("access", "Rome")]
    assert [result.text for result in results] == [
        f"1. Ann: {PAGES['Ann']}",
        f"Rome: {PAGES['Rome']}",
    ]
    return [Turn("observation", one.text, trained=False, result=one) for one in results]


def roll_out(kind: str, template: str, context: Any, script: tuple[str, ...]) -> Any:
    conversation = make_conversation(kind, template)
    toolbox = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig())
    rollout = Rollout(ScriptedEngine(conversation, script), conversation, toolbox, TEMPLATE)
    task = Task("t", (Objective("Who?", ("Ann",)),))
    limits = AgentSettings(context, 8, 5000, 500, BUDGET)
    (trajectory,) = rollout.collect([task], 1, limits, Sampling())
    assert [r.text for r in trajectory.rounds] == list(script)
    return trajectory


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_demonstration_equals_what_the_rollout_lays_out(kind: str, template: str) -> None:
    first, second = observations()
    demonstration = Demonstration(
        "Who?",
        (
            Turn("assistant", ROUNDS[0]),
            first,
            Turn("assistant", ROUNDS[1]),
            second,
            Turn("assistant", ROUNDS[2]),
        ),
        "trajectory",
    )
    text = encode_demonstration(demonstration, make_conversation(kind, template), TEMPLATE, BUDGET)
    (sequence,) = roll_out(kind, template, "full", ROUNDS).sequences
    assert text.ids == sequence.ids
    assert text.trained == [bool(is_policy) for is_policy in sequence.mask]
    # The first observation is longer than its budget.
    assert PAGES["Ann"] not in make_conversation(kind, template).decode(text.ids)
    assert sum(text.trained) == sum(
        len(make_conversation(kind, template).encode(part)) for part in ROUNDS
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_single_round_equals_the_memory_context(kind: str) -> None:
    demonstration = Demonstration(
        "Who?",
        (
            Turn("assistant", ROUNDS[1], trained=False),
            observations()[1],
            Turn("assistant", ROUNDS[2]),
        ),
        "round",
    )
    conversation = make_conversation(kind)
    text = encode_demonstration(demonstration, conversation, TEMPLATE, BUDGET)
    last = roll_out(kind, "qwen2.5", "memory", ROUNDS).sequences[-1]
    assert text.ids == last.ids
    assert text.trained == [bool(is_policy) for is_policy in last.mask]


def test_a_given_memory_is_not_trained() -> None:
    conversation = make_conversation("tags")
    demonstration = Demonstration(
        "Who?", (Turn("assistant", "\n<answer>Ann</answer>", given="<mem>Ann</mem>"),), "answer"
    )
    text = encode_demonstration(demonstration, conversation, TEMPLATE, BUDGET)
    prompt = conversation.prompt_ids("Use the tools. Who?")
    given, answer = (
        conversation.encode(part) for part in ("<mem>Ann</mem>", "\n<answer>Ann</answer>")
    )
    assert text.ids == [*prompt, *given, *answer]
    assert text.trained == [False] * (len(prompt) + len(given)) + [True] * len(answer)


# Micro-batches


def make_texts(count: int) -> list[TrainingText]:
    """Text i begins with the id i + 1, is 2 + i % 7 long, and its last 1 + i % 2 are trained."""
    texts = []
    for i in range(count):
        length, trained = 2 + i % 7, 1 + i % 2
        texts.append(
            TrainingText([i + 1] * length, [False] * (length - trained) + [True] * trained)
        )
    return texts


def make_config(**options: Any) -> SftConfig:
    return replace(SftConfig(steps=5, batch_size=4, micro_batch_tokens=12), **options)


def members(batch: SftBatch) -> list[int]:
    """Which texts a micro-batch holds; a rank without work gets none."""
    return [int(row[0]) - 1 for row in batch.ids if int(row[0])]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_every_rank_has_the_same_number_and_all_texts_are_used_once_per_pass(
    world_size: int, budget: int
) -> None:
    texts = make_texts(18)  # a pass is five steps of at most four texts
    config = make_config(steps=10, micro_batch_tokens=budget)
    ranks = [SftDataset(texts, config, rank, world_size) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    passes: list[Counter[int]] = [Counter(), Counter()]
    orders: list[list[int]] = []
    step, in_step, announced, trained = 0, [], set(), 0
    for index in range(len(ranks[0])):
        batches = [rank[index] for rank in ranks]
        assert len({batch.last_of_step for batch in batches}) == 1
        for batch in batches:
            in_step += members(batch)
            announced.add(batch.step_tokens)
            trained += int(batch.trained.sum())
            assert batch.ids.shape[0] == 1 or batch.ids.numel() <= budget
        if batches[0].last_of_step:
            assert announced == {trained}
            assert trained == sum(1 + i % 2 for i in in_step)
            assert len(in_step) == (2 if step % 5 == 4 else 4)
            passes[step // 5].update(in_step)
            orders.append(in_step)
            step, in_step, announced, trained = step + 1, [], set(), 0
    assert step == 10
    assert in_step == []
    assert passes == [Counter(range(18)), Counter(range(18))]
    assert [sorted(part) for part in orders[:5]] != [sorted(part) for part in orders[5:]]


def test_padding() -> None:
    texts = [TrainingText([5, 6, 7], [False, True, True]), TrainingText([8, 9], [False, True])]
    dataset = SftDataset(texts, make_config(steps=1), 0, 1)
    (batch,) = [dataset[i] for i in range(len(dataset))]
    assert batch.ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.trained.tolist() == [[False, True, True], [False, True, False]]
    assert (batch.step_tokens, batch.last_of_step) == (3, True)


def test_packed_texts_count_without_their_padding() -> None:
    """Texts of 4, 3 and 2 tokens: nine fit into a budget of nine only where none is padded."""
    texts = [TrainingText([*range(5, 5 + n)], [False] + [True] * (n - 1)) for n in (2, 4, 3)]
    config = make_config(steps=1, micro_batch_tokens=9)
    padded, packed = (SftDataset(texts, config, 0, 1, packed=each) for each in (False, True))
    assert [padded[index].ids.shape for index in range(len(padded))] == [(2, 4), (1, 2)]
    assert [packed[index].ids.shape for index in range(len(packed))] == [(3, 4)]
    assert packed[0].wanted.packed
    assert not padded[0].wanted.packed


def test_a_rank_without_work_gets_an_empty_batch() -> None:
    texts = make_texts(1)
    batch = SftDataset(texts, make_config(steps=1), 1, 2)[0]
    assert batch.ids.tolist() == [[0, 0]]
    assert batch.attention_mask.tolist() == [[1, 0]]
    assert not batch.trained.any()
    assert (batch.step_tokens, batch.last_of_step) == (1, True)


def test_the_seed_decides_the_order() -> None:
    texts = make_texts(18)

    def order(seed: int) -> list[list[int]]:
        dataset = SftDataset(texts, make_config(seed=seed), 0, 1)
        return [members(dataset[i]) for i in range(len(dataset))]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_without_texts_there_is_nothing_to_train() -> None:
    with pytest.raises(ValueError, match="there is no demonstration"):
        SftDataset([], make_config(), 0, 1)
