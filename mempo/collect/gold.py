"""A teacher that knows the answers, and looks for the sentences in which they stand.

For a first start of a real model without another model to learn from. Of each question it searches
with the question's own words, opens the pages that were found, keeps the first sentence that holds
an accepted answer in its memory, and answers when every question has one. It shows the form, and
that a memory carries what answers; how to break a question into searches it does not show. Where no
sentence is found it says so instead of answering, and the attempt is dropped as wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mempo.collect.scripted import ScriptedTeacher
from mempo.config import ScoringConfig
from mempo.demonstrations.trajectory_shapes import unwrapped
from mempo.engine.interface import Messages
from mempo.learning.rewards import normalized_words
from mempo.trajectory import Objective, Task

UNKNOWN: Final = "unknown"
"""What stands in the answer for a question whose sentence was not found."""

_PAGES: Final = 3  # opened for a question, at most
_NOT_IN_TEXTS: Final = (["yes"], ["no"], ["noanswer"])
_NUMBERED: Final = re.compile(r"^\d+\. (?=\S)")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9])")


@dataclass
class _Question:
    objective: Objective
    shown: str
    sentence: str | None = None
    titles: list[str] = field(default_factory=list)
    steps: int = 0
    closed: bool = False  # its sentence was found, or nothing is left to try


class GoldTeacher(ScriptedTeacher):
    """``tasks``: by the key of their attempt. ``inert`` takes tags out of questions."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        encode: Callable[[str], list[int]],
        scoring: ScoringConfig,
        inert: Callable[[str], str],
    ) -> None:
        super().__init__(encode)
        self._scoring = scoring
        self._minds = {
            key: [_Question(one, inert(one.question)) for one in task.objectives]
            for key, task in tasks.items()
        }

    def write_round(self, key: str, messages: Messages) -> str:
        """The memory of the sentences found so far, and the next step of the first open
        question."""
        questions = self._minds[key]
        begun = any(one.steps for one in questions)
        if begun:
            told = [one["content"] for one in messages if one["role"] == "user"]
            _read(next(one for one in questions if not one.closed), questions, unwrapped(told[-1]))
        memory = f"<mem>{' '.join(_noted(questions))}</mem>" if begun else ""
        current = next((one for one in questions if not one.closed), None)
        if current is None:
            return memory + self._answer(questions)
        return memory + _step(current)

    def _answer(self, questions: Sequence[_Question]) -> str:
        gold = "; ".join(
            UNKNOWN if one.sentence is None else one.objective.golds[0] for one in questions
        )
        return self._scoring.answer_template.format(filler=self._scoring.filler, gold=gold)


def _step(one: _Question) -> str:
    one.steps += 1
    if one.steps == 1:
        return f"<think>I search for it: {one.shown}</think><search>{one.shown}</search>"
    return f"<think>{one.titles[0]} may say it.</think><access>{one.titles[0]}</access>"


def _read(current: _Question, questions: Sequence[_Question], observation: str) -> None:
    """Takes what the newest observation says, for every question that is open."""
    lines = [_NUMBERED.sub("", line) for line in observation.splitlines()]
    if current.steps == 1:
        titles = (line.partition(": ")[0] for line in lines if ": " in line)
        current.titles = list(dict.fromkeys(titles))[:_PAGES]
    else:
        del current.titles[0]
    for one in questions:
        if one.sentence is None:
            one.sentence = next(_holding(lines, one.objective.golds), None)
            one.closed |= one.sentence is not None
    current.closed |= not current.titles


def _holding(lines: Sequence[str], golds: Sequence[str]) -> Iterator[str]:
    """The sentences, behind the title of their passage, that hold one of the golds."""
    wanted = [words for gold in golds if (words := normalized_words(gold)) not in _NOT_IN_TEXTS]
    for line in lines:
        title, _, body = line.partition(": ")
        for sentence in _SENTENCE_END.split(body):
            said = f"{title}: {sentence.strip()}"
            if any(_holds(normalized_words(said), words) for words in wanted):
                yield said


def _holds(words: Sequence[str], wanted: Sequence[str]) -> bool:
    size = len(wanted)
    return any(words[at : at + size] == wanted for at in range(len(words) - size + 1))


def _noted(questions: Sequence[_Question]) -> Iterator[str]:
    for number, one in enumerate(questions, start=1):
        said = one.sentence or ("Nothing was found." if one.closed else "Not known yet.")
        yield f"{number}. {one.shown} {said}"
