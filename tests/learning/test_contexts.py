"""The contexts of P_full and P_mem, and the alias that is scored (specification section 6).

Against rows that are put together from texts and scored by a plain forward.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from mempo.agent.protocol import MEMORY_OPEN
from mempo.agent.state_machine import Agent, AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig, ScoringConfig
from mempo.engine.interface import Sampling
from mempo.learning.contexts import memory_ids, whole_history
from mempo.learning.gold_choice import ALIAS_LIMIT, best_gold, gold_texts
from mempo.learning.scored_rows import encode_answer
from mempo.learning.scoring import MemoryScorer
from mempo.trajectory import Ending, Objective, Round, Task, TokenSequence, Trajectory
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.small_tokenizers import TOKENIZERS, make_conversation, make_tokenizer

TASK = Task("t", (Objective("Who?", ("Ann",)),))
PAGES = {"Ann": "Ann was born in Rome.", "Rome": "Rome is a town. " * 12, "Bob": "Bob is Ann's."}
MEMORIES = (None, "<mem>Ann: Rome</mem>", "\n<mem>\nRome; Bob\n</mem>", "<mem>Bob, Rome é</mem>")
ACTIONS = (
    "<think>so</think><search>Ann</search>",
    "<think>page</think><access>Rome</access>",
    "<think>more</think><search>Bob</search>",
    "<think>done</think><answer>Ann</answer>",
)
METHODS: tuple[Literal["tree", "padded"], ...] = ("tree", "padded")


def drive(
    kind: str,
    context: Literal["full", "memory", "mem1"] = "full",
    keep_steps: int | Literal["all"] = 1,
    newest: Literal["full", "short"] = "full",
    prefill: bool = False,
) -> Trajectory:
    """Four rounds, three of them scored, driven by a script."""
    conversation = make_conversation(kind)
    texts = [(memory or "") + action for memory, action in zip(MEMORIES, ACTIONS, strict=True)]
    if prefill:
        texts = [text.lstrip().removeprefix(MEMORY_OPEN) for text in texts]
    engine = ScriptedEngine(conversation, texts)
    prompt = conversation.prompt_ids("Who is Ann?")
    trajectory = Trajectory(TASK, 0, 0, len(prompt))
    session = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig()).session(TASK)
    limits = AgentSettings(
        context, 8, 4000, 400, 400, prefill, newest=newest, keep_steps=keep_steps
    )
    agent = Agent(trajectory, prompt, conversation, session, limits, 100_000)
    while True:
        if agent.pending_call is not None:
            agent.observe(session.call(*agent.pending_call))
        elif (request := agent.next_request()) is not None:
            engine.submit("0/0", request.prompt_ids, request.max_tokens, 1, Sampling())
            (made,) = engine.step()
            agent.receive(made.ids, made.logprobs, made.finish_reason)
        else:
            break
    assert trajectory.ending == Ending.ANSWERED
    assert [one.number for one in trajectory.scored_rounds()] == [2, 3, 4]
    return trajectory


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=512,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            initializer_range=0.3,
        )
    ).eval()


@torch.no_grad()
def plain(model: Any, kind: str, context: list[int], gold: str = "Ann") -> float:
    """P of the gold after a context, from one forward over the row."""
    text = encode_answer(make_tokenizer(kind), ScoringConfig(), gold)
    row = torch.tensor([[*context, *text.ids]])
    logprobs = model(input_ids=row).logits[0].double().log_softmax(-1)
    scored = [
        float(logprobs[len(context) + index - 1, token])
        for index, (token, is_gold) in enumerate(zip(text.ids, text.mask, strict=True))
        if is_gold
    ]
    return math.exp(sum(scored) / len(scored))


def score(
    model: Any, kind: str, trajectory: Trajectory, **settings: Any
) -> list[tuple[float, float]]:
    MemoryScorer(make_tokenizer(kind), ScoringConfig(**settings)).score(model, [trajectory])
    return [(r.p_full or 0.0, r.p_mem or 0.0) for r in trajectory.scored_rounds()]


def memory_text(round_: Round) -> str:
    return round_.text[: round_.text.index("</mem>") + len("</mem>")]


# The memory context


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("context", ["full", "memory", "mem1"])
@pytest.mark.parametrize("prefill", [False, True])
def test_p_mem_stands_after_the_closing_tag(
    model: Any, kind: str, context: Any, prefill: bool
) -> None:
    trajectory = drive(kind, context, prefill=prefill)
    conversation = make_conversation(kind)
    prompt = conversation.prompt_ids("Who is Ann?")
    merged = 0
    for method in METHODS:
        found = score(model, kind, trajectory, method=method)
        for round_, (_, p_mem) in zip(trajectory.scored_rounds(), found, strict=True):
            text, given = memory_text(round_), MEMORY_OPEN if prefill else ""
            row = [*prompt, *conversation.encode(given)]
            row += conversation.encode(text.removeprefix(given))
            assert math.log(p_mem) == pytest.approx(math.log(plain(model, kind, row)), abs=1e-4)
            assert round_.memory_span is not None
            ids = trajectory.sequences[round_.sequence].ids
            as_sampled = [*prompt, *ids[round_.start : round_.memory_span[1]]]
            if as_sampled != row:  # the sampled tokens run into the next tag
                merged += 1
                off = math.log(plain(model, kind, as_sampled)) - math.log(p_mem)
                assert abs(off) > 1e-3
    assert merged == (6 if kind == "merged" else 0)


def test_a_memory_that_is_cut_hangs_from_the_next_sequence_as_far_as_it_can() -> None:
    """There the merged token is whole: all before it is shared, its head is not."""
    trajectory = drive("merged", "memory")
    rows = MemoryScorer(make_tokenizer("merged"), ScoringConfig()).rows([trajectory])
    memories = [row for row in rows if row.is_memory]
    assert [row.sequence is trajectory.sequences[-1] for row in memories] == [False, True, True]
    assert [len(row.own) for row in memories[:2]] == [1, 1]
    for row in memories:
        whole = [*row.sequence.ids[: row.prefix], *row.own]
        assert make_conversation("merged").decode(whole).endswith(memory_text(row.round))


def test_advantages_stay_on_sampled_tokens() -> None:
    (round_, *_) = drive("merged").scored_rounds()
    ids, unchanged = memory_ids(make_tokenizer("merged"), drive("merged"), round_)
    assert unchanged == len(ids) - 1
    assert round_.memory_tokens == len(ids)
    assert len(make_conversation("merged").encode("><")) == 1


def test_a_tokenizer_that_puts_a_space_before_every_text() -> None:
    """Llama 2 and Mistral encode ``>`` as ``▁>``: the part up to the tag has a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["▁<mem>Bo", "</", "mem", "><", ">", "▁>", "think", "▁"]
    core = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [], ignore_merges=True)
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert tokenizer.encode(">") == [5]
    sequence = TokenSequence()
    sequence.append_context([0, 1, 2, 3, 6])
    round_ = Round(2, 0, 0, 0, 5, "<mem>Bo</mem><think", memory_span=(0, 4))
    trajectory = Trajectory(TASK, 0, 0, 0, [sequence], [round_])
    assert memory_ids(tokenizer, trajectory, round_) == ((0, 1, 2, 4), 3)


# What P_full stands after in memory-context rollouts


@pytest.mark.parametrize("keep_steps", [1, 2, "all"])
@pytest.mark.parametrize("prefill", [False, True])
def test_the_whole_history_is_what_a_full_context_rollout_holds(
    keep_steps: Any, prefill: bool
) -> None:
    full = drive("merged", prefill=prefill)
    history = whole_history(drive("merged", "memory", keep_steps, prefill=prefill))
    assert history.lengths == {one.number: one.snapshot_length for one in full.rounds}
    last = full.rounds[-1].snapshot_length
    assert history.sequence.ids == full.sequences[0].ids[:last]


def test_the_whole_history_holds_results_as_they_were_first_shown() -> None:
    conversation = make_conversation("tags")
    trajectory = drive("tags", "memory", 2, "short")
    row = conversation.prompt_ids("Who is Ann?")
    for before in trajectory.rounds[:-1]:
        assert before.observation_short is not None
        row += conversation.encode(before.text)
        row += conversation.observation_ids(before.observation_short)
    assert whole_history(trajectory).sequence.ids == row
    assert trajectory.rounds[1].observation != trajectory.rounds[1].observation_short


def test_a_context_that_does_not_end_with_the_round_before_is_refused() -> None:
    trajectory = drive("tags", "memory")
    trajectory.rounds[1].result_tokens -= 1
    with pytest.raises(ValueError, match="context of round 3 does not end with round 2"):
        whole_history(trajectory)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("history", ["visible", "trajectory"])
def test_p_full_by_history(model: Any, method: str, history: str) -> None:
    """Rows by hand: what the round saw, or prompt, rounds and results one after the other."""
    conversation = make_conversation("merged")
    trajectory = drive("merged", "memory")
    prompt = conversation.prompt_ids("Who is Ann?")
    told = [
        conversation.encode(one.text) + conversation.observation_ids(one.observation or "")
        for one in trajectory.rounds[:-1]
    ]
    found = score(model, "merged", trajectory, method=method, history=history)
    for number, (p_full, p_mem) in zip((2, 3, 4), found, strict=True):
        seen = told[: number - 1] if history == "trajectory" else told[number - 2 : number - 1]
        row = [*prompt, *(token for part in seen for token in part)]
        assert math.log(p_full) == pytest.approx(math.log(plain(model, "merged", row)), abs=1e-4)
        memory = [*prompt, *conversation.encode(memory_text(trajectory.rounds[number - 1]))]
        assert math.log(p_mem) == pytest.approx(math.log(plain(model, "merged", memory)), abs=1e-4)


def test_history_makes_no_difference_in_full_context(model: Any) -> None:
    first = score(model, "merged", drive("merged"), history="visible")
    second = score(model, "merged", drive("merged"), history="trajectory")
    assert first == second


def test_old_log_probabilities_come_along_with_the_whole_history(model: Any) -> None:
    expected, found = drive("merged", "memory"), drive("merged", "memory")
    visible, whole = ScoringConfig(), ScoringConfig(history="trajectory")
    for trajectory, config in ((expected, visible), (found, whole)):
        MemoryScorer(make_tokenizer("merged"), config).score(
            model, [trajectory], old_temperature=0.7
        )
    for one, other in zip(expected.sequences, found.sequences, strict=True):
        assert other.old_logprobs == pytest.approx(one.old_logprobs, abs=1e-5)


# The alias that is scored

FIRST, SECOND = ("Ann", "Bob", "Rome", "so", "1"), ("Rome", "a town", "friend", "é")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("context", ["full", "memory"])
def test_aliases_are_chosen_objective_by_objective(model: Any, method: Any, context: Any) -> None:
    """By brute force over every alias of each objective, the other at its first."""
    task = replace(TASK, objectives=(Objective("Who?", FIRST), Objective("Where?", SECOND)))
    trajectory = drive("merged", context)
    trajectory.task = task
    scorer = MemoryScorer(make_tokenizer("merged"), ScoringConfig(method=method, gold="best"))
    done: list[int] = []
    scorer.score(model, [trajectory], done.append)
    assert sum(done) == scorer.row_count([trajectory]) == 3 * (5 + 4 - 1 + 2)
    conversation = make_conversation("merged")
    chosen = set()
    for round_ in trajectory.scored_rounds():
        ids = trajectory.sequences[round_.sequence].ids[: round_.snapshot_length]
        first = max(FIRST, key=lambda alias: plain(model, "merged", ids, f"{alias}; Rome"))
        second = max(SECOND, key=lambda alias: plain(model, "merged", ids, f"Ann; {alias}"))
        chosen.add((first, second))
        gold = f"{first}; {second}"
        assert round_.p_full == pytest.approx(plain(model, "merged", ids, gold), rel=1e-4)
        prompt = conversation.prompt_ids("Who is Ann?")
        memory = [*prompt, *conversation.encode(memory_text(round_))]
        assert round_.p_mem == pytest.approx(plain(model, "merged", memory, gold), rel=1e-4)
    assert any(one != "Ann" and other != "Rome" for one, other in chosen)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("gold", ["first", "best"])
@pytest.mark.parametrize("reward", ["probability", "log_probability"])
def test_the_memory_before_takes_the_place_of_the_history(
    model: Any, method: Any, context: Any, gold: Any, reward: Any
) -> None:
    """Rows by hand: the question alone, then each memory; one text for all, chosen after the
    question alone."""
    trajectory = drive("merged", context)
    trajectory.task = replace(
        TASK, objectives=(Objective("Who?", FIRST), Objective("Where?", SECOND))
    )
    config = ScoringConfig(method=method, gold=gold, baseline="previous", reward=reward)
    scorer = MemoryScorer(make_tokenizer("merged"), config)
    done: list[int] = []
    scorer.score(model, [trajectory], done.append)
    tried = 5 + 4 - 1 if gold == "best" else 0
    assert sum(done) == scorer.row_count([trajectory]) == 3 + 1 + tried
    conversation = make_conversation("merged")
    prompt = conversation.prompt_ids("Who is Ann?")
    text = "Ann; Rome"
    if gold == "best":
        first = max(FIRST, key=lambda alias: plain(model, "merged", prompt, f"{alias}; Rome"))
        second = max(SECOND, key=lambda alias: plain(model, "merged", prompt, f"Ann; {alias}"))
        assert first != "Ann" or second != "Rome"
        text = f"{first}; {second}"
    before = plain(model, "merged", prompt, text)
    for round_ in trajectory.scored_rounds():
        row = [*prompt, *conversation.encode(memory_text(round_))]
        after = plain(model, "merged", row, text)
        assert abs(math.log(after / before)) > 1e-2
        assert round_.p_previous == pytest.approx(before, rel=1e-4)
        assert round_.p_mem == pytest.approx(after, rel=1e-4)
        gain = math.log(after / before) if reward == "log_probability" else after - before
        assert round_.memory_reward == pytest.approx(gain, rel=1e-3, abs=2e-4 * after)
        assert round_.p_full is None
        before = after


@pytest.mark.parametrize("context", ["full", "memory"])
def test_without_histories_nothing_is_computed_beyond_the_prompt(model: Any, context: Any) -> None:
    """Of the sequences only the prompt, and no more passes than with histories."""
    trajectory = drive("merged", context)
    tokenizer = make_tokenizer("merged")
    sizes: list[int] = []

    def forward(module: Any, args: Any, kwargs: Any) -> None:
        sizes.append(kwargs["input_ids"].numel())

    handle = model.register_forward_pre_hook(forward, with_kwargs=True)
    MemoryScorer(tokenizer, ScoringConfig()).score(model, [trajectory])
    with_histories = len(sizes)
    sizes.clear()
    MemoryScorer(tokenizer, ScoringConfig(baseline="previous")).score(model, [trajectory])
    handle.remove()
    text = len(encode_answer(tokenizer, ScoringConfig(), "Ann").ids)
    own = [len(memory_ids(tokenizer, trajectory, one)[0]) for one in trajectory.scored_rounds()]
    branches = (1 + text) + sum(memory + text for memory in own)
    assert sum(sizes) == trajectory.prompt_length + branches
    assert len(sizes) <= with_histories


def test_the_likeliest_of_sixty_aliases_is_found(model: Any) -> None:
    aliases = tuple(f"{one}{other}" for one in "abcdef" for other in "0123456789")
    trajectory = drive("merged")
    trajectory.task = replace(TASK, objectives=(Objective("Who?", aliases),))
    found = score(model, "merged", trajectory, gold="best")
    places = []
    for round_, (p_full, _) in zip(trajectory.scored_rounds(), found, strict=True):
        ids = trajectory.sequences[0].ids[: round_.snapshot_length]
        values = [plain(model, "merged", ids, alias) for alias in aliases]
        places.append(values.index(max(values)))
        assert p_full == pytest.approx(max(values), rel=1e-4)
    assert max(places) >= 16  # beyond a first handful


def test_a_limit_that_cuts_is_told_once(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    aliases = tuple(f"a{number}" for number in range(ALIAS_LIMIT + 1))
    task = replace(TASK, objectives=(Objective("Who?", aliases), Objective("?", ("x", "x", "y"))))
    assert len(gold_texts(task, "best")) == ALIAS_LIMIT + 1
    assert best_gold(task, {one: float(one[-1] == "y") for one in gold_texts(task, "best")}) == (
        "a0; y"
    )
    trajectory = drive("merged")
    trajectory.task = task
    scorer = MemoryScorer(make_tokenizer("merged"), ScoringConfig(gold="best"))
    with caplog.at_level(logging.WARNING):
        scorer.score(model, [trajectory])
        scorer.score(model, [trajectory])
    told = [one.getMessage() for one in caplog.records if "alias" in one.getMessage()]
    assert len(told) == 1
    assert "first 64 aliases" in told[0]


def test_ranks_exchange_before_their_passes(model: Any) -> None:
    """Passes of a sharded model are exchanges between the ranks, so none may come before."""
    configs = (
        ScoringConfig(),
        ScoringConfig(gold="best"),
        ScoringConfig(gold="best", method="padded"),
    )
    for config in configs:
        events: list[str] = []

        def count(own: int, events: list[str] = events) -> int:
            events.append("count")
            return own + 2

        def forward(*_: Any, events: list[str] = events) -> None:
            events.append("pass")

        handle = model.register_forward_pre_hook(forward)
        trajectory = drive("merged")
        trajectory.task = replace(TASK, objectives=(Objective("?", ("Ann", "Bob")),))
        MemoryScorer(make_tokenizer("merged"), config, count).score(model, [trajectory])
        idle: list[str] = events[:]
        events.clear()
        MemoryScorer(make_tokenizer("merged"), config, count).score(model, [])
        handle.remove()
        assert idle[0] == "count"
        exchanges = 1 if config.gold == "first" else 2
        assert idle.count("count") == events.count("count") == exchanges
        assert events == ["count", "pass", "pass"] * exchanges
