"""What a round may be shown of what came before it, by name (specification sections 4 and 9).

``full`` and ``memory`` are the method's own; the others are the baselines beside it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass

from mempo.config.strict import STRICT

ContextName = Literal["react", "mem1", "summary", "retrieval_memory", "full", "memory"]

CONTEXTS: Final[tuple[ContextName, ...]] = get_args(ContextName)[::-1]

_WITHOUT_MEMORY: Final = ("react", "summary", "retrieval_memory")
_WHOLE: Final = ("full", "react")


def writes_memory(context: str) -> bool:
    """Whether the agent writes memories in this context: its instructions ask for them, they may be
    prefilled, and format rule 8 holds. Elsewhere ``<mem>`` is no tag."""
    return context not in _WITHOUT_MEMORY


def shows_everything(context: str) -> bool:
    """Whether every round sees all before it, so that a trajectory is one growing sequence."""
    return context in _WHOLE


@dataclass(frozen=True, config=STRICT)
class SummaryConfig:
    """The ``summary`` context: after every ``every_rounds`` rounds the model summarizes what it has
    seen, in at most ``max_tokens`` tokens."""

    every_rounds: int = Field(default=4, ge=1)
    max_tokens: int = Field(default=256, ge=1)


@dataclass(frozen=True, config=STRICT)
class RetrievalMemoryConfig:
    """The ``retrieval_memory`` context: the best ``pieces`` of what was seen come back each round;
    a piece has at most ``piece_words`` words."""

    pieces: int = Field(default=5, ge=1)
    piece_words: int = Field(default=100, ge=1)
