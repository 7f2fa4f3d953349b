"""The question in the first user turn of a chat, without the instructions around it.

A demonstration is laid out with the run's own instructions (``model.prompt_template``), so those
that a file brings come off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import jinja2

from mempo.agent.protocol import TAGS
from mempo.row_files.rows import Row

_MARKER: Final = "QUESTIONINPROMPTMARKER"
_TAG: Final = re.compile(rf"</?(?:{'|'.join(TAGS)})>")
_ASKED: Final = (
    # ASearcher's instructions, which put a full stop behind the question
    re.compile(
        r"\nUser:\s*(?P<question>.+?)\.?\s*\n+The language of your answer should align", re.DOTALL
    ),
    # MEM1's
    re.compile(
        r"Answer (?:all of )?the following (?:\w+ )?questions?:\s*(?P<question>.+)\Z", re.DOTALL
    ),
    # Search-R1's, and this project's own
    re.compile(r"Question:\s*(?P<question>(?:(?!Question:).)+)\Z", re.DOTALL),
)


@dataclass(frozen=True)
class PromptFrame:
    """What stands before and after the question in the run's first user turn."""

    before: str
    after: str


def prompt_frame(template: jinja2.Template, memory: bool = True) -> PromptFrame:
    """The frame of a prompt template; one that shows the question twice has none to take off."""
    parts = template.render(question=_MARKER, memory=memory).split(_MARKER)
    return PromptFrame(parts[0], parts[1]) if len(parts) == 2 else PromptFrame("", "")


@dataclass(frozen=True)
class Asked:
    """``taken_off``: instructions of the file's own stood around it."""

    question: str
    taken_off: bool = False


def asked_question(row: Row, text: str, frame: PromptFrame) -> Asked:
    """The row's own ``question``, else what ``text`` asks: all of it, or without the run's
    instructions, or without those of ASearcher, MEM1 and Search-R1.

    Raises ``DataError`` where ``text`` explains the protocol's tags and nothing says which part of
    it is the question.
    """
    if row.first("question") is not None:
        return Asked(row.text("question"))
    if not text.strip():
        raise row.fault("the question is blank")
    own = text.strip().removeprefix(frame.before.lstrip()).removesuffix(frame.after.rstrip())
    taken = len(frame.before.lstrip()) + len(frame.after.rstrip())
    if taken and len(own) == len(text.strip()) - taken and own.strip():
        return Asked(own.strip())
    if not _TAG.search(text):
        return Asked(text.strip())
    for pattern in _ASKED:
        found = pattern.search(text)
        if found is not None and found["question"].strip():
            return Asked(found["question"].strip(), taken_off=True)
    raise row.fault(
        "the first user's turn holds instructions, and which part of them is the question is not "
        'known: give it by itself in a field "question"'
    )
