"""The context ``mem1``: of the past only the last memory (specification section 9)."""

from __future__ import annotations

import pytest

from mempo.agent.protocol import MEMORY_OPEN
from mempo.agent.state_machine import NO_ACTION_FEEDBACK
from mempo.trajectory import Ending
from tests.support.contexts import chat, make, result
from tests.support.small_tokenizers import TEMPLATES, TOKENIZERS, make_conversation

SEARCH = "<think>so</think><search>Ann</search>"
ACCESS = "<mem>Ann: Rome</mem><think>page</think><access>Rome</access>"
AGAIN = "<mem>Rome: a town</mem><think>who</think><search>Bob</search>"
ANSWER = "<mem>Ann: Rome, a town</mem><think>done</think><answer>Ann</answer>"
FOUND = result("1. Ann: Ann was born in Rome.")
PAGE = result("Rome: " + "Rome is a town. " * 12)
BOB = result("1. Bob: Bob is a friend.")
ROUNDS = [SEARCH, ACCESS, AGAIN, ANSWER]
QUESTION = "Remember. Who?"
CONTEXTS = [
    chat(QUESTION),
    chat(QUESTION, "", FOUND),  # round 1 wrote no memory
    chat(QUESTION, "<mem>Ann: Rome</mem>", PAGE),
    chat(QUESTION, "<mem>Rome: a town</mem>", BOB),
]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_question_last_memory_newest_result(kind: str, template: str) -> None:
    made = make(ROUNDS, kind, template, context="mem1")
    assert made.trajectory.ending is Ending.ANSWERED
    assert made.trajectory.format_valid is True
    shown = [make_conversation(kind, template).tokenizer.decode(ids) for ids in made.prompts]
    tokenizer = make_conversation(kind, template).tokenizer
    if template != "qwen3":  # it takes an empty assistant's turn for one with a thought
        assert shown == [tokenizer.decode(made.ids_of(context)) for context in CONTEXTS]
    for text in shown[2:]:
        assert text.count("<mem>") == text.count("<information>") == 1
        assert "<think>" not in text.split("Who?")[1].split("<mem>")[1].split("assistant")[0]


def test_contexts_as_ids_by_hand() -> None:
    """The memory's own ids, closed by the template's end of turn, and the result."""
    made = make(ROUNDS, context="mem1")
    assert made.prompts == [made.ids_of(context) for context in CONTEXTS]
    contexts = [len(ids) for ids in made.prompts]
    rounds = [len(made.encode(text)) for text in ROUNDS]
    assert made.trajectory.total_tokens == sum(contexts) + sum(rounds)
    peaks = [a + b for a, b in zip(contexts, rounds, strict=True)]
    assert made.trajectory.peak_tokens == max(peaks)
    assert [one.sequence for one in made.trajectory.rounds] == [0, 1, 2, 3]
    prompt = made.trajectory.prompt_length
    assert all(one.ids[:prompt] == made.prompts[0] for one in made.trajectory.sequences)


def test_the_memory_keeps_the_ids_that_were_sampled() -> None:
    """A memory spelt in single bytes, which the tokenizer would merge."""
    conversation = make_conversation("merged")
    spelt = [token for letter in "<mem>Ann</mem>" for token in conversation.encode(letter)]
    rest = conversation.encode("<think>page</think><access>Rome</access>")
    assert spelt != conversation.encode("<mem>Ann</mem>")
    made = make([SEARCH, [*spelt, *rest], ANSWER], "merged", context="mem1")
    start = made.trajectory.prompt_length
    assert made.prompts[2][start : start + len(spelt)] == spelt


def test_a_token_that_runs_past_the_memory_is_cut() -> None:
    """``><`` is one token; of it the part up to ``</mem>`` is tokenized anew."""
    made = make([SEARCH, ACCESS, ANSWER], "merged", context="mem1")
    (merged,) = made.encode("><")
    own = made.trajectory.rounds[1]
    assert own.memory_span is not None
    sampled = made.trajectory.sequences[1].ids[slice(*own.memory_span)]
    assert sampled[-1] == merged
    start = made.trajectory.prompt_length
    cut = [*sampled[:-1], *made.encode(">")]
    assert made.prompts[2][start : start + len(cut)] == cut
    conversation = make_conversation("merged")
    assert made.prompts[2][start + len(cut) :] == conversation.observation_ids(PAGE)


def test_a_round_without_a_memory_leaves_the_last_one() -> None:
    without = "<think>who</think><search>Bob</search>"
    made = make([SEARCH, ACCESS, without, ANSWER], context="mem1")
    assert made.prompts[3] == made.ids_of(chat(QUESTION, "<mem>Ann: Rome</mem>", BOB))
    assert made.trajectory.rounds[2].broken_rules == [8]
    assert made.trajectory.format_valid is False


@pytest.mark.parametrize("doubles", [False, True])
def test_with_a_prefilled_memory(doubles: bool) -> None:
    """A given ``<mem>`` is part of the memory that is shown, once."""
    access = ACCESS if doubles else ACCESS.removeprefix(MEMORY_OPEN)
    answer = ANSWER.removeprefix(MEMORY_OPEN)
    made = make([SEARCH, access, answer], context="mem1", prefill_memory=True)
    given = made.encode(MEMORY_OPEN)
    expected = made.ids_of(chat(QUESTION, "<mem>Ann: Rome</mem>", PAGE))
    assert made.prompts[2] == [*expected, *given]
    assert made.trajectory.format_valid is True


def test_an_end_of_turn_of_the_models_own_is_not_doubled() -> None:
    """Its round ended with the mark; the memory's turn is cut before it and closed once."""
    idle = "<mem>nothing</mem><think>hm</think>"
    made = make([idle, ANSWER], context="mem1", on_no_action="feedback")
    told = result(NO_ACTION_FEEDBACK)
    assert made.prompts[1] == made.ids_of(chat(QUESTION, "<mem>nothing</mem>", told))


def test_a_circle_is_sampled_once() -> None:
    """The same memory and the same result: the same context, from the third round on."""
    again = "<mem>Ann</mem><think>so</think><search>Ann</search>"
    long = make([again] * 8, context="mem1")
    made = make([again] * 2, context="mem1", reuse_repeats=True)
    assert len(long.prompts) == 8
    assert len(made.prompts) == 2
    assert made.trajectory.repeated_rounds == 6
    assert made.trajectory.total_tokens == long.trajectory.total_tokens
    assert made.trajectory.sequences == long.trajectory.sequences


def test_messages_of_engines_that_are_asked_with_chats() -> None:
    assert make(ROUNDS, context="mem1", by_chat=True).prompts == CONTEXTS
