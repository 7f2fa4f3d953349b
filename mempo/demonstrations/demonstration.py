"""What a supervised text is made of, whether the world or a file tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mempo.agent.tools import ToolResult

Role = Literal["assistant", "observation"]
DemonstrationKind = Literal["trajectory", "round", "answer"]


@dataclass(frozen=True)
class Turn:
    """One turn after the question.

    An assistant's turn reads ``given + text``; only ``text`` is trained, and only where
    ``trained``. An observation's text is the tool's, neither cut nor wrapped; ``result`` says how
    it is to be cut.
    """

    role: Role
    text: str
    given: str = ""
    trained: bool = True
    result: ToolResult | None = None


@dataclass(frozen=True)
class Demonstration:
    """A question and the turns that follow it."""

    question: str
    turns: tuple[Turn, ...]
    kind: DemonstrationKind
