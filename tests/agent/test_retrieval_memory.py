"""The context ``retrieval_memory``: pieces of what was seen come back (specification section 9)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mempo.agent.recalled_pieces import HEADING, PieceStore, listed
from mempo.config import RetrievalMemoryConfig
from mempo.trajectory import Ending
from tests.support.contexts import chat, make, result
from tests.support.small_tokenizers import TOKENIZERS, make_conversation

ANN = "<think>so</think><search>Ann</search>"
BOB = "<think>friend of Ann</think><search>Bob</search>"
ROME = "<think>town of Ann</think><access>Rome</access>"
ANSWER = "<think>done</think><answer>Ann</answer>"
FOUND_ANN = "1. Ann: Ann was born in Rome."
FOUND_BOB = "1. Bob: Bob is a friend."
PAGE = "Rome: " + "Rome is a town. " * 12
QUESTION = "Plain. Who?"


def recalled(*pieces: str) -> str:
    return result("\n".join([HEADING, *(f"{i}. {one}" for i, one in enumerate(pieces, 1))]))


# The store


def bm25(query: list[str], texts: list[list[str]]) -> list[float]:
    """BM25+ (Lv and Zhai 2011; k1 = 1.5, b = 0.75, delta = 1) without what all texts get alike."""
    count, average = len(texts), sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        total = 0.0
        for word in query:
            holders = sum(word in other for other in texts)
            if not holders:
                continue
            idf = math.log((count + 1) / holders)
            often = text.count(word)
            total += idf * often * 2.5 / (often + 1.5 * (0.25 + 0.75 * len(text) / average))
        scores.append(total)
    return scores


def test_best_pieces_by_bm25() -> None:
    lines = [
        "ann lives in rome",
        "bob lives in oslo with ann",
        "carl works",
        "dora sings songs",
        "emil sings",
        "ann ann",
        "fred walks to work",
    ]
    store = PieceStore(RetrievalMemoryConfig(pieces=3))
    store.add("\n".join(lines))
    query = ["ann", "rome", "sings"]
    scores = bm25(query, [line.split() for line in lines])
    order = sorted(range(len(lines)), key=lambda i: -scores[i])
    assert scores.count(0.0) == 2
    expected = [lines[i] for i in order[:3]]
    assert expected[0] == "ann lives in rome"
    assert store.best("Ann Rome sings", "") == expected


def test_a_name_that_every_piece_holds_counts() -> None:
    """Okapi's weight of a word in both of two texts is negative: the worse piece would win."""
    store = PieceStore(RetrievalMemoryConfig(pieces=1))
    store.add("ann sings\nann ann")
    assert store.best("ann", "") == ["ann ann"]


def test_pieces_are_lines_of_so_many_words() -> None:
    store = PieceStore(RetrievalMemoryConfig(pieces=9, piece_words=3))
    store.add("1. Ann: was born in Rome.\n\n  12. Bob: born.\nThe year 3. born late")
    assert set(store.best("born in the", "")) == {
        "Ann: was born",
        "in Rome.",
        "Bob: born.",
        "The year 3.",
        "born late",
    }


def test_a_piece_comes_once_and_not_where_it_is_shown() -> None:
    store = PieceStore(RetrievalMemoryConfig())
    assert store.best("Ann", "") == []
    store.add("1. Ann: here.\n2. Bob: Ann's friend.")
    store.add("3. Ann: here.")
    assert sorted(store.best("Ann", "")) == ["Ann: here.", "Bob: Ann's friend."]
    assert store.best("Ann", "7. Ann: here.") == ["Bob: Ann's friend."]
    assert store.best("Carl", "") == []


def test_listed() -> None:
    assert listed(["a", "b"]) == f"{HEADING}\n1. a\n2. b"


# Contexts


def contexts(pieces: tuple[str, ...] = ()) -> list[Any]:
    return [
        chat(QUESTION),
        chat(QUESTION, ANN, result(FOUND_ANN)),
        chat(
            QUESTION,
            BOB,
            f"{recalled('Ann: Ann was born in Rome.', 'so search: Ann')}\n{result(FOUND_BOB)}",
        ),
    ]


@pytest.mark.parametrize("by_chat", [True, False])
def test_question_round_pieces_and_result(by_chat: bool) -> None:
    """Before round 3 the store holds round 1 and its result; both share "Ann" with round 2."""
    made = make([ANN, BOB, ANSWER], context="retrieval_memory", by_chat=by_chat)
    shown = contexts()
    if by_chat:
        assert made.prompts == shown
    else:
        assert made.prompts == [made.ids_of(one) for one in shown]
        rounds = [len(made.encode(text)) for text in (ANN, BOB, ANSWER)]
        sent = [len(ids) for ids in made.prompts]
        assert made.trajectory.total_tokens == sum(sent) + sum(rounds)
        assert made.trajectory.peak_tokens == sent[2] + rounds[2]
        assert [one.sequence for one in made.trajectory.rounds] == [0, 1, 2]
    assert made.trajectory.ending is Ending.ANSWERED
    assert made.trajectory.format_valid is True
    block = recalled("Ann: Ann was born in Rome.", "so search: Ann")
    assert [one.given for one in made.trajectory.rounds] == [None, None, block]


def test_as_many_pieces_as_the_setting_says() -> None:
    made = make(
        [ANN, BOB, ANSWER],
        context="retrieval_memory",
        by_chat=True,
        retrieval_memory=RetrievalMemoryConfig(pieces=1),
    )
    assert made.trajectory.rounds[2].given == recalled("Ann: Ann was born in Rome.")


def test_everything_seen_can_come_back_and_nothing_that_is_shown() -> None:
    """Round 4 after a page: results and rounds of before, not the newest ones."""
    made = make([ANN, BOB, ROME, ANSWER], context="retrieval_memory", by_chat=True)
    given = made.trajectory.rounds[3].given
    assert given is not None
    lines = given.removeprefix("<information>").removesuffix("</information>").split("\n")[1:]
    assert {line.split(". ", 1)[1] for line in lines} == {
        "so search: Ann",
        "Ann: Ann was born in Rome.",
        "friend of Ann search: Bob",
    }
    assert made.prompts[3][-1]["content"] == f"{given}\n{result(PAGE)}"
    assert made.prompts[3][-2] == {"role": "assistant", "content": ROME}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_block_has_an_observations_room(kind: str) -> None:
    made = make(
        [ANN, BOB, ANSWER],
        kind,
        context="retrieval_memory",
        max_observation_tokens=60,
        by_chat=True,
    )
    given = made.trajectory.rounds[2].given
    assert given is not None
    assert given.endswith("</information>")
    assert make_conversation(kind).count(given) <= 60


def test_own_words_come_back_without_tags() -> None:
    first = "<think>a <search> for Ann</think><search>Ann</search>"
    made = make([first, BOB, ANSWER], context="retrieval_memory", by_chat=True)
    assert made.trajectory.rounds[2].given is not None
    assert "a (search) for Ann search: Ann" in made.trajectory.rounds[2].given


def test_a_circle_is_sampled_once() -> None:
    """From the third round on the store holds nothing new."""
    long = make([ANN] * 8, context="retrieval_memory")
    made = make([ANN] * 3, context="retrieval_memory", reuse_repeats=True)
    assert len(long.prompts) == 8
    assert len(made.prompts) == 3
    assert made.trajectory.repeated_rounds == 5
    assert made.trajectory.sequences == long.trajectory.sequences
    assert made.trajectory.total_tokens == long.trajectory.total_tokens


def test_sequences_are_those_of_a_rollout_that_can_be_trained() -> None:
    made = make([ANN, BOB, ANSWER], context="retrieval_memory")
    trajectory = made.trajectory
    for one, text in zip(trajectory.rounds, (ANN, BOB, ANSWER), strict=True):
        sequence = trajectory.sequences[one.sequence]
        assert sequence.ids[: trajectory.prompt_length] == made.prompts[0]
        assert sum(sequence.mask) == len(made.encode(text))
        assert sequence.mask[: one.snapshot_length] == [0] * one.snapshot_length
    assert list(trajectory.scored_rounds()) == []
