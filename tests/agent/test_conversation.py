"""Chat-template glue and token offsets (specification section 4)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import STOP_STRINGS
from mempo.agent.state_machine import Agent, AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig
from mempo.runtime.errors import MempoError
from mempo.trajectory import Objective, SpanKind, Task, Trajectory
from tests.support.fakes import FakeRetriever
from tests.support.small_tokenizers import (
    SYSTEM,
    TEMPLATES,
    TOKENIZERS,
    make_conversation,
    make_tokenizer,
)

ROUND_1 = "<search>Ann of Rome</search>"
ROUND_2 = "<mem>Ann — naïve 🐙</mem>\n<access>Rome</access>"
THOUGHT = "<think>I need her name</think>"
RESULTS = ("<information>1. Ann: Ann was born.\n</information>", "<information>é</information>")

kinds = pytest.mark.parametrize("kind", TOKENIZERS)
templates = pytest.mark.parametrize("template", TEMPLATES)


def piece_by_piece(conversation: Conversation, rounds: tuple[str, ...]) -> list[int]:
    ids = conversation.prompt_ids("Who is Ann?\n")
    for text, result in zip(rounds, RESULTS, strict=True):
        ids += [*conversation.encode(text), *conversation.observation_ids(result)]
    return ids


def as_a_whole(kind: str, template: str, rounds: tuple[str, ...]) -> list[int]:
    """The tokenizer's template on all messages at once."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Who is Ann?\n"},
    ]
    for text, result in zip(rounds, RESULTS, strict=True):
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": result})
    ids: Any = make_tokenizer(kind, template).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(ids)


def test_the_tokenizers_cut_tags_differently() -> None:
    merged, tags, one_byte = (make_tokenizer(kind) for kind in TOKENIZERS)
    assert {"><", "></", ">Ċ"} <= set(merged.get_vocab())
    assert tags.tokenize("</mem><think>") == ["</mem>", "<think>"]
    assert len(one_byte.tokenize("</mem>é")) == 8


@kinds
@templates
@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_verl_6921_trl_5330_pieces_equal_the_whole(kind: str, template: str, thought: str) -> None:
    rounds = (thought + ROUND_1, ROUND_2 if not thought else thought + ROUND_2)
    whole = as_a_whole(kind, template, rounds)
    pieces = piece_by_piece(make_conversation(kind, template), rounds)
    if thought and template == "qwen3":
        # SkyRL 438: the template drops the thoughts of earlier turns, the ids keep them.
        text = make_tokenizer(kind, template).decode(pieces)
        assert text.count(THOUGHT) == 2
        assert THOUGHT not in make_tokenizer(kind, template).decode(whole)
    else:
        assert pieces == whole


@kinds
def test_a_bos_mark_stands_once(kind: str) -> None:
    conversation = make_conversation(kind, "llama3")
    mark = conversation.tokenizer.bos_token_id
    ids = piece_by_piece(conversation, (ROUND_1, ROUND_2))
    assert ids[0] == mark
    assert ids.count(mark) == 1


@kinds
@templates
def test_agent_r1_30_a_sampled_end_of_turn_is_not_added_again(kind: str, template: str) -> None:
    conversation = make_conversation(kind, template)
    added = conversation.observation_ids(RESULTS[0])
    assert added[0] == conversation.tokenizer.eos_token_id
    assert added[0] in conversation.end_ids
    assert conversation.observation_ids(RESULTS[0], closed=True) == added[1:]


def test_a_template_that_ends_turns_in_plain_text_has_no_end_of_turn_id() -> None:
    tokenizer = make_tokenizer("bytes", "smollm2").__class__(
        tokenizer_object=make_tokenizer("bytes", "smollm2")._tokenizer
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    conversation = Conversation(tokenizer, SYSTEM)
    assert conversation.glue.before == "\nuser: "
    assert conversation.end_ids == frozenset()
    ids = conversation.encode("\nuser: o\nassistant: ")
    assert conversation.observation_ids("o", closed=True) == ids


def test_unusable_templates_are_refused() -> None:
    tokenizer = make_tokenizer("bytes").__class__(
        tokenizer_object=make_tokenizer("bytes")._tokenizer
    )
    with pytest.raises(MempoError, match="no chat template"):
        Conversation(tokenizer, SYSTEM)
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(MempoError, match="each message exactly once"):
        Conversation(tokenizer, SYSTEM)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
    )
    with pytest.raises(MempoError, match="cannot be continued piece by piece"):
        Conversation(tokenizer, SYSTEM)


# Offsets


@kinds
@pytest.mark.parametrize("text", ["", "a", "</mem><think>🐙é—x</think>\n", "é" * 5, "\ufffd ok"])
def test_offsets_partition_the_text(kind: str, text: str) -> None:
    conversation = make_conversation(kind)
    ids = conversation.encode(text)
    offsets = conversation.offsets(ids)
    assert len(offsets) == len(ids)
    assert [start for start, _ in offsets] == [0, *[end for _, end in offsets[:-1]]][: len(ids)]
    assert not offsets or offsets[-1][1] == len(text)
    assert all(start <= end for start, end in offsets)


def test_offsets_of_bytes_of_one_character() -> None:
    """The first byte owns the character; the others stand behind it, with nothing."""
    conversation = make_conversation("bytes")
    offsets = conversation.offsets(conversation.encode("a🐙é"))
    assert offsets == [(0, 1), (1, 2), (2, 2), (2, 2), (2, 2), (2, 3), (3, 3)]


@pytest.mark.parametrize("kind", ["merged", "tags"])
def test_offsets_of_one_token_for_several_characters(kind: str) -> None:
    conversation = make_conversation(kind)
    ids = conversation.tokenizer.convert_tokens_to_ids(
        {"merged": ["a", "><", "b"], "tags": ["a", "</mem>", "b"]}[kind]
    )
    wide = {"merged": 2, "tags": 6}[kind]
    assert conversation.offsets(ids) == [(0, 1), (1, 1 + wide), (1 + wide, 2 + wide)]


def test_a_stray_byte_takes_nothing_from_its_neighbours() -> None:
    """An untrained model samples bytes that form no character."""
    conversation = make_conversation("tags")
    stray = conversation.encode("é")[:1]
    close = conversation.encode("</mem>")
    assert conversation.offsets([*stray, *close, *stray]) == [(0, 1), (1, 7), (7, 8)]


def test_special_tokens_have_no_text() -> None:
    conversation = make_conversation("tags")
    end = conversation.tokenizer.eos_token_id
    ids = [*conversation.encode("a"), end, *conversation.encode("b"), end]
    assert conversation.offsets(ids) == [(0, 1), (1, 1), (1, 2), (2, 2)]


@given(
    kind=st.sampled_from(TOKENIZERS),
    drawn=st.lists(st.integers(min_value=0, max_value=255), max_size=30),
)
def test_offsets_of_any_ids_are_the_lengths_of_their_prefixes(kind: str, drawn: list[int]) -> None:
    conversation = make_conversation(kind)
    ends = [end for _, end in conversation.offsets(drawn)]
    assert ends == [len(conversation.decode(drawn[: n + 1])) for n in range(len(drawn))]
    assert all(left <= right for left, right in pairwise(ends))


# Cutting at a character


@kinds
def test_split_where_a_token_ends(kind: str) -> None:
    conversation = make_conversation(kind)
    ids = conversation.encode("<search>Ann</search>")
    assert conversation.split_at_character(ids, 20) == (ids, [])


def test_split_inside_a_token_that_runs_past_the_tag() -> None:
    conversation = make_conversation("merged")
    token = conversation.tokenizer.convert_tokens_to_ids("><")
    before = conversation.encode("<search>Ann</search")
    kept, rest = conversation.split_at_character([*before, token], 20)
    assert kept == before
    assert rest == conversation.encode(">")
    assert conversation.decode([*kept, *rest]) == "<search>Ann</search>"


def test_split_keeps_nothing_after_the_cut() -> None:
    conversation = make_conversation("tags")
    ids = conversation.encode("a</search>")
    end = conversation.tokenizer.eos_token_id
    assert conversation.split_at_character([*ids, end], 10) == (ids, [])
    more = conversation.encode("bc")
    assert conversation.split_at_character([*ids, *more], 10) == (ids, [])


# Observations


@kinds
@pytest.mark.parametrize("text", ["word " * 900, "ÄÖ—🐙 " * 300, "🐙" * 600])
def test_search_r1_127_the_closing_tag_survives_the_cut(kind: str, text: str) -> None:
    conversation = make_conversation(kind)
    assert len(conversation.encode(text)) > 500
    wrapped = conversation.wrap_observation(text, 500)
    assert 480 <= len(conversation.encode(wrapped)) <= 500
    assert wrapped.startswith("<information>")
    assert wrapped.endswith("</information>")
    body = wrapped.removeprefix("<information>").removesuffix("</information>")
    assert text.startswith(body)


@kinds
def test_an_observation_within_its_budget_stays_as_it_is(kind: str) -> None:
    conversation = make_conversation(kind)
    whole = "<information>Ann is — a \ufffd\n</information>"
    budget = len(conversation.encode(whole))
    assert conversation.wrap_observation("Ann is — a \ufffd\n", budget) == whole
    shorter = conversation.wrap_observation("Ann is — a \ufffd\n", budget - 1)
    assert shorter != whole
    assert shorter.endswith("</information>")


def test_no_room_for_any_text() -> None:
    conversation = make_conversation("tags")
    assert conversation.wrap_observation("Ann", 2) == "<information></information>"


# Any sequence of rounds

_PARTS = st.sampled_from(
    ("<mem>", "</mem>", "<think>", "</think>", "<search>", "<access>", "Ann", "é🐙", "\n", " ")
)
_TURNS = st.lists(
    st.tuples(
        st.lists(_PARTS, max_size=6).map("".join),
        st.sampled_from(
            ("<search>Ann</search>", "<access>no</access>", "<answer>Ann</answer>", "")
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(
    kind=st.sampled_from(TOKENIZERS),
    template=st.sampled_from(TEMPLATES),
    turns=_TURNS,
    prefill=st.booleans(),
    context=st.sampled_from(("full", "memory")),
)
def test_any_rounds_give_lists_of_one_length(
    kind: str,
    template: str,
    turns: list[tuple[str, str, bool]],
    prefill: bool,
    context: Literal["full", "memory"],
) -> None:
    conversation = make_conversation(kind, template)
    task = Task("t", (Objective("Who?", ("Ann",)),))
    prompt = conversation.prompt_ids("Who?")
    trajectory = Trajectory(task, 0, 0, len(prompt))
    limits = AgentSettings(context, 8, 4000, 400, 200, prefill, "feedback")
    toolbox = ToolBox({"default": FakeRetriever({"Ann": "Ann is <mem>"})}, RetrieverConfig())
    agent = Agent(trajectory, prompt, conversation, toolbox.session(task), limits, 5000)
    sampled: list[int] = []
    for body, action, closes in turns:
        if agent.next_request() is None:
            break
        ids = conversation.encode(body + action)
        if closes or not ids:
            ids = [*ids, conversation.tokenizer.eos_token_id]
        stopped = closes or any(stop in body + action for stop in STOP_STRINGS)
        sampled += ids
        agent.receive(ids, [-0.5] * len(ids), "stop" if stopped else "length")
        if agent.pending_call is not None:
            agent.observe(agent.session.call(*agent.pending_call))

    for sequence in trajectory.sequences:
        lists = (sequence.ids, sequence.mask, sequence.logprobs, sequence.kinds)
        assert {len(part) for part in lists} == {len(sequence)}
        for is_policy, logprob, span in zip(
            sequence.mask, sequence.logprobs, sequence.kinds, strict=True
        ):
            assert (logprob == -0.5) if is_policy else (logprob is None)
            assert bool(is_policy) == (span != SpanKind.CONTEXT)
    for round_ in trajectory.rounds:
        sequence = trajectory.sequences[round_.sequence]
        ids = sequence.ids[round_.start : round_.end]
        assert conversation.decode(ids) == round_.text
        memory = {i for i, span in enumerate(sequence.kinds) if span == SpanKind.MEMORY}
        inside = {i for i in memory if round_.start <= i < round_.end}
        if round_.memory_span is not None and round_.text.count("<mem>") == 1:
            tokens = range(*round_.memory_span)
            assert inside == {i for i in tokens if sequence.mask[i]}
    policy = [
        token
        for sequence in trajectory.sequences
        for token, is_policy in zip(sequence.ids, sequence.mask, strict=True)
        if is_policy
    ]
    assert len(policy) <= len(sampled)
    assert len(policy) == trajectory.policy_tokens
