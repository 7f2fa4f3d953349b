"""The context ``summary``: a summary every so many rounds (specification section 9)."""

from __future__ import annotations

from typing import Any

import pytest

from mempo.agent.baseline_windows import SUMMARY_HEADING, SUMMARY_REQUEST
from mempo.config import SummaryConfig
from mempo.trajectory import Ending, SpanKind
from tests.support.contexts import Made, chat, make, result
from tests.support.fakes import LOGPROB
from tests.support.small_tokenizers import TOKENIZERS, make_conversation

ANN = "<think>so</think><search>Ann</search>"
BOB = "<think>friend</think><search>Bob</search>"
ROME = "<think>town</think><access>Rome</access>"
ANSWER = "<think>done</think><answer>Ann</answer>"
FOUND_ANN = result("1. Ann: Ann was born in Rome.")
FOUND_BOB = result("1. Bob: Bob is a friend.")
PAGE = result("Rome: " + "Rome is a town. " * 12)
QUESTION = "Plain. Who?"
FIRST = "Ann was born in Rome."
SECOND = "Ann: Rome, a town."


def opening(summary: str) -> str:
    return f"{QUESTION}\n\n{SUMMARY_HEADING}\n{summary}"


def asked(text: str) -> str:
    return f"{text}\n\n{SUMMARY_REQUEST}"


SCRIPT = [ANN, BOB, FIRST, ROME, ANN, SECOND, ANSWER]
CONTEXTS = [
    chat(QUESTION),
    chat(QUESTION, ANN, FOUND_ANN),
    chat(QUESTION, ANN, FOUND_ANN, BOB, asked(FOUND_BOB)),
    chat(opening(FIRST)),
    chat(opening(FIRST), ROME, PAGE),
    chat(opening(FIRST), ROME, PAGE, ANN, asked(FOUND_ANN)),
    chat(opening(SECOND)),
]
END = "<|im_end|>"


def summarized(pieces: Any = SCRIPT, every: int = 2, longest: int = 256, **options: Any) -> Made:
    how = SummaryConfig(every_rounds=every, max_tokens=longest)
    return make(pieces, context="summary", summary=how, **options)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_history_after_the_summary_stays_whole(kind: str) -> None:
    made = summarized(kind=kind)
    assert made.prompts == [made.ids_of(context) for context in CONTEXTS]
    trajectory = made.trajectory
    assert trajectory.ending is Ending.ANSWERED
    assert trajectory.format_valid is True
    assert [one.text for one in trajectory.rounds] == [ANN, BOB, ROME, ANN, ANSWER]
    assert [one.given for one in trajectory.rounds] == [None, None, FIRST, None, SECOND]
    assert summarized(kind=kind, by_chat=True).prompts == CONTEXTS


def test_summaries_count_as_tokens_by_hand() -> None:
    """Seven requests. A summary ends with the model's own end of turn, one token more."""
    made = summarized()
    sampled = [len(made.encode(text)) for text in SCRIPT]
    sampled[2] += 1
    sampled[5] += 1
    contexts = [len(made.ids_of(context)) for context in CONTEXTS]
    trajectory = made.trajectory
    assert trajectory.total_tokens == sum(contexts) + sum(sampled)
    pairs = zip(contexts, sampled, strict=True)
    assert trajectory.peak_tokens == max(context + own for context, own in pairs)
    assert trajectory.policy_tokens == sum(sampled)


def test_where_tokens_stand() -> None:
    """A sequence until the summary, the summary's, one until the next, its, and the last."""
    made = summarized()
    trajectory = made.trajectory
    assert len(trajectory.sequences) == 5
    assert [one.sequence for one in trajectory.rounds] == [0, 0, 2, 2, 4]
    for one, prompt in zip(trajectory.rounds, [0, 1, 3, 4, 6], strict=True):
        ids = trajectory.sequences[one.sequence].ids
        assert ids[: one.snapshot_length] == made.prompts[prompt]
    written = trajectory.sequences[1]
    ids = [*made.encode(FIRST), *made.encode(END)]
    assert written.ids == [*made.prompts[2], *ids]
    assert written.mask == [0] * len(made.prompts[2]) + [1] * len(ids)
    assert written.kinds[-len(ids) :] == [SpanKind.OTHER] * len(ids)
    assert written.logprobs[-len(ids) :] == [LOGPROB] * len(ids)


def test_a_summary_is_cut_at_its_own_limit() -> None:
    conversation = make_conversation("tags")
    made = summarized(longest=3, max_round_tokens=100)
    kept = conversation.decode(conversation.encode(FIRST)[:3])
    assert made.prompts[3] == made.ids_of(chat(opening(kept.strip())))
    assert made.trajectory.ending is Ending.ANSWERED


def test_summaries_take_of_the_response_budget() -> None:
    """The budget ends with the third token of the summary; no round follows."""
    free = summarized().trajectory
    first = free.sequences[0]
    glue = make_conversation("tags").observation_ids(FOUND_BOB)
    used = len(first) - free.prompt_length + len(glue)
    made = summarized(max_response_tokens=used + 3)
    assert made.trajectory.ending is Ending.RESPONSE_BUDGET
    assert len(made.prompts) == 3
    assert made.trajectory.sequences[1].policy_tokens == 3
    assert len(made.trajectory.rounds) == 2


def test_a_context_without_room_for_a_summary_ends_the_trajectory() -> None:
    room = len(summarized().prompts[2])
    made = summarized(max_model_len=room)
    assert made.trajectory.ending is Ending.CONTEXT_BUDGET
    assert len(made.prompts) == 2
    made = summarized(max_model_len=room + 2)
    assert made.trajectory.sequences[1].policy_tokens == 2


def test_no_summary_before_its_round_and_none_after_the_last() -> None:
    made = summarized([ANN, BOB, ROME, ANSWER], every=4)
    whole = chat(QUESTION, ANN, FOUND_ANN, BOB, FOUND_BOB, ROME, PAGE)
    assert made.prompts[-1] == made.ids_of(whole)
    assert len(made.trajectory.sequences) == 1
    made = summarized([ANN, BOB], max_rounds=2)
    assert made.trajectory.ending is Ending.MAX_ROUNDS
    assert len(made.prompts) == 2


def test_tags_and_marks_in_a_summary_are_words() -> None:
    made = summarized([ANN, BOB, "<answer>Ann</answer> and more", ANSWER], by_chat=True)
    assert made.prompts[3] == chat(opening("(answer)Ann(/answer)"))
    assert made.trajectory.answer == "Ann"
    assert made.trajectory.format_valid is True


def test_a_circle_is_sampled_once() -> None:
    """The same summary of the same rounds: all requests come back."""
    script = [ANN, ANN, FIRST] * 4
    long = summarized(script)
    made = summarized([*script[:3], *script[:3]], reuse_repeats=True)
    assert len(long.prompts) == 8 + 3
    # Question, round 1, summary; with a summary before, each once more.
    assert len(made.prompts) == 6
    assert made.trajectory.repeated_rounds == 4
    assert made.trajectory.sequences == long.trajectory.sequences
    assert made.trajectory.total_tokens == long.trajectory.total_tokens
