"""What a round's sampled ids say (specification section 2).

A pure function of the ids. An agent that walks in circles samples the same ids again and again, and
they are read once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import ParsedRound, Protocol, memory_token_range, parse_round, token_kinds
from mempo.trajectory import SpanKind


@dataclass(frozen=True)
class Reading:
    """A round's ids, read. ``ids`` are the sampled ones up to the end of the action, ``rest`` the
    ids of what a token that runs past it holds before that end
    (``Conversation.split_at_character``), ``kinds`` those of ``ids``. ``memory`` counts from the
    round's first token, a prefilled tag included. ``cut``: the round ends with its action.
    """

    parsed: ParsedRound
    ids: list[int]
    rest: list[int]
    kinds: list[SpanKind]
    memory: tuple[int, int] | None
    cut: bool


class Reader:
    """Reads the rounds of one trajectory, with the conversation's tags unless ``protocol`` says
    otherwise. What it returns is shared: do not change it."""

    def __init__(self, conversation: Conversation, protocol: Protocol | None = None) -> None:
        self.conversation = conversation
        tags = protocol or conversation.protocol
        self._read = functools.cache(functools.partial(_read, conversation, tags))
        self._inside_open_body = functools.cache(functools.partial(_open_body, conversation, tags))
        self.observation_ids = functools.cache(conversation.observation_ids)

    def read(self, prefill: list[int], sampled: list[int], number: int) -> Reading:
        """The ``sampled`` ids of a round that began with ``prefill``."""
        # Of the number only matters whether there was a round before (rule 8).
        return self._read(tuple(prefill), tuple(sampled), min(number, 2))

    def inside_open_body(self, ids: list[int]) -> bool:
        """True when a round's ids hold no action yet and end inside an unclosed body."""
        return self._inside_open_body(tuple(ids))


def _read(
    conversation: Conversation,
    protocol: Protocol,
    prefill: tuple[int, ...],
    sampled: tuple[int, ...],
    number: int,
) -> Reading:
    text = conversation.decode([*prefill, *sampled])
    action_end = parse_round(text, number, protocol).action_end
    ids, rest = list(sampled), list[int]()
    if action_end is not None:
        opening = len(conversation.decode(list(prefill)))
        ids, rest = conversation.split_at_character(ids, action_end - opening)
    whole = [*prefill, *ids, *rest]
    parsed = parse_round(conversation.decode(whole), number, protocol)
    offsets = conversation.offsets(whole)
    kinds = token_kinds(offsets, parsed)[len(prefill) : len(prefill) + len(ids)]
    memory = memory_token_range(offsets, parsed)
    return Reading(parsed, ids, rest, kinds, memory, action_end is not None)


def _open_body(conversation: Conversation, protocol: Protocol, ids: tuple[int, ...]) -> bool:
    """After a closing tag that stands alone it is not inside one: a model that repeats such a tag
    would be called for ever."""
    parsed = parse_round(conversation.decode(list(ids)), 1, protocol)
    if parsed.action_end is not None or not parsed.spans:
        return False
    last = parsed.spans[-1]
    return not last.closed and not parsed.text.startswith("</", last.start)
