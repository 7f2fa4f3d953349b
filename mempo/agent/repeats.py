"""Greedy samples that a trajectory has seen before (specification section 4).

Without chance a generation is a function of the tokens that it continues. Where a round shows only
a part of the past (specification section 9), an agent that walks in circles comes to the same
context again and again. What was sampled then is taken once more and the engine is not asked.

Only sampling is left out. Tools are called again and every limit is looked at again, so that pages
which are read on, retrievers that answer otherwise and budgets that run out end a circle just as
they would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GenerationRequest:
    """Tokens to continue, how many more are allowed, and the request's number in its trajectory
    (from which its seed is derived)."""

    prompt_ids: list[int]
    max_tokens: int
    number: int


@dataclass(frozen=True)
class Sampled:
    """What an engine gave for a request: ids, the log-probability of each, and why it ended."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


class SeenContexts:
    """What greedy sampling gave after each context of one trajectory."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], Sampled] = {}

    def remember(self, request: GenerationRequest, sampled: Sampled) -> None:
        """Keeps what the engine gave for a request."""
        self._seen[tuple(request.prompt_ids)] = sampled

    def recall(self, request: GenerationRequest) -> Sampled | None:
        """What the engine would give for this request, or ``None`` where that is not known.

        A smaller allowance ends the same tokens earlier. What ended at its allowance tells nothing
        of how it would have gone on under a larger one.
        """
        seen = self._seen.get(tuple(request.prompt_ids))
        if seen is None:
            return None
        room = request.max_tokens - len(seen.ids)
        if room < 0:
            kept = request.max_tokens
            return Sampled(seen.ids[:kept], seen.logprobs[:kept], "length")
        return None if room > 0 and seen.finish_reason == "length" else seen
