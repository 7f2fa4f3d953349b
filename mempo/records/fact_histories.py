"""Which facts of a world's task each memory holds, and where one was lost.

A memory is the model's own prose, so a fact is looked for sentence by sentence. It is *held* where
one sentence names its relation and says it of the right two: "noun of subject" with the object, or
the subject before the object. Case does not matter; names count as whole words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from mempo.records.trajectory_lines import RoundLine, TrajectoryLine
from mempo.world.facts import Fact, world_chains
from mempo.world.relations import RELATION

_SENTENCE_END: Final = re.compile(r"[.;!?]+(?:\s+|$)|\n+")


class FactState(StrEnum):
    """What became of a fact by the memory of a round."""

    HELD = "held"
    """The memory says it."""
    SPENT = "spent"
    """An earlier memory said it, this one does not, and a later fact of its chain makes up for it:
    nothing needs it any more."""
    LOST = "lost"
    """An earlier memory said it, this one does not, and no later fact of its chain is held."""
    TOLD = "told"
    """A tool has told it, and no memory up to here ever said it."""
    UNSEEN = "unseen"
    """Neither a tool nor a memory has told it."""


@dataclass(frozen=True)
class FactHistory:
    """One fact over the rounds of a trajectory.

    ``states`` has an entry for each round. ``named[i]`` tells that the memory of round i names the
    object without saying the fact. ``found_at`` is the position of the round in which it was
    established: a tool told it there, or the memory said it (``None``: neither ever). ``lost_in``
    holds the numbers of the rounds whose memory lost it; there are several when it was written down
    again in between.
    """

    objective: int
    fact: Fact
    states: tuple[FactState, ...]
    named: tuple[bool, ...]
    found_at: int | None
    lost_in: tuple[int, ...]


def is_held(fact: Fact, memory: str) -> bool:
    """Whether a sentence of ``memory`` says the fact."""
    noun = RELATION[fact.relation].noun
    return any(_says(sentence, fact, noun) for sentence in _SENTENCE_END.split(memory))


def is_named(name: str, text: str) -> bool:
    """Whether ``text`` holds the name as whole words."""
    return _find(name, text) is not None


def fact_histories(trajectory: TrajectoryLine) -> list[FactHistory]:
    """The history of each fact of the task, in the order of the chains.

    A round after the first without a memory has an empty one: in the memory context it would carry
    nothing over.
    """
    chains = world_chains(trajectory.metadata)
    held = [[_held_by_round(fact, trajectory.rounds) for fact in chain] for chain in chains]
    return [
        _history(objective, fact, trajectory.rounds, held[objective][index:])
        for objective, chain in enumerate(chains)
        for index, fact in enumerate(chain)
    ]


def _history(
    objective: int, fact: Fact, rounds: Sequence[RoundLine], held: Sequence[Sequence[bool]]
) -> FactHistory:
    """``held``: by round, of the fact itself and of the later facts of its chain."""
    own, *later = held
    states: list[FactState] = []
    lost_in: list[int] = []
    found_at: int | None = None
    written = told = False
    for index, one in enumerate(rounds):
        if own[index]:
            state = FactState.HELD
        elif written:
            made_up = any(by_round[index] for by_round in later)
            state = FactState.SPENT if made_up else FactState.LOST
        else:
            state = FactState.TOLD if told else FactState.UNSEEN
        if state is FactState.LOST and states[-1] is not FactState.LOST:
            lost_in.append(one.number)
        states.append(state)
        written = written or own[index]
        told = told or fact.is_told_in(_plain(one.observation))
        if found_at is None and (written or told):
            found_at = index
    named = tuple(
        not is_own and is_named(fact.object, one.mem or "")
        for one, is_own in zip(rounds, own, strict=True)
    )
    return FactHistory(objective, fact, tuple(states), named, found_at, tuple(lost_in))


def _held_by_round(fact: Fact, rounds: Sequence[RoundLine]) -> list[bool]:
    return [is_held(fact, one.mem or "") for one in rounds]


def _plain(observation: str | None) -> str:
    """The tool's text without the tag around it, which would hide the title of the first line."""
    text = observation or ""
    return text.removeprefix("<information>").removesuffix("</information>")


def _says(sentence: str, fact: Fact, noun: str) -> bool:
    subject, object_ = _find(fact.subject, sentence), _find(fact.object, sentence)
    if subject is None or object_ is None or _find(noun, sentence) is None:
        return False
    if _find(f"{noun} of {fact.subject}", sentence) is not None:
        return True
    return subject < object_ and _find(f"{noun} of {fact.object}", sentence) is None


def _find(name: str, text: str) -> int | None:
    found = _whole_words(name).search(text)
    return None if found is None else found.start()


@lru_cache(maxsize=4096)
def _whole_words(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", flags=re.IGNORECASE)
