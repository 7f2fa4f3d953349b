"""Chat-template glue: from messages and sampled ids to token ids (specification section 4).

What the model sampled is never tokenized again. Everything between two sampled turns (the end of
the assistant's turn, the user turn with the observation, the next generation prompt) is rendered
by the tokenizer's own chat template around marker texts, cut out, and tokenized as one piece. The
pieces are glue: they carry mask 0.

Templates that rewrite earlier turns (Qwen3's drops earlier thoughts) cannot touch what was
sampled, because the markers stand where the turns would.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from mempo.agent.chat_template import ChatTemplate
from mempo.agent.inert import InertText
from mempo.agent.protocol import (
    DEFAULT_PROTOCOL,
    OBSERVATION_CLOSE,
    OBSERVATION_OPEN,
    Protocol,
)


class Conversation:
    """Builds token ids for one tokenizer and its chat template.

    ``system_prompt`` ``None`` leaves the system message out. ``inert`` takes tags and control
    marks out of foreign text; ``protocol`` says which tags there are. Raises ``MempoError`` when
    the tokenizer has no chat template, or when a conversation cannot be built with it
    (``ChatTemplate``).
    """

    def __init__(
        self,
        tokenizer: Any,
        system_prompt: str | None,
        protocol: Protocol = DEFAULT_PROTOCOL,
    ) -> None:
        self.tokenizer = tokenizer
        self.protocol = protocol
        self.system_prompt = system_prompt
        self._pieces: dict[int, str] = {}
        self._template = ChatTemplate(tokenizer, system_prompt)
        self.glue = self._template.glue
        self.inert = InertText(tokenizer, protocol.tools)
        self.end_ids = self._end_of_turn_ids()
        self.empty_observation_tokens = self.count(OBSERVATION_OPEN + OBSERVATION_CLOSE)

    def encode(self, text: str) -> list[int]:
        """Token ids of template text, special tokens recognized and none added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        """The text of sampled ids, special tokens left out and nothing cleaned up."""
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def prompt_ids(self, user_text: str) -> list[int]:
        """The first round's context: system message, instructions and question, and the
        generation prompt."""
        return self.encode(self._template.prompt(user_text))

    def observation_ids(self, wrapped: str, closed: bool = False) -> list[int]:
        """Glue ids from the end of a sampled turn to the start of the next generation.

        ``wrapped`` is the observation's text with its ``<information>`` tags. ``closed`` says that
        the model sampled the end-of-turn mark itself, so that it is not added again.
        """
        ids = self.encode(self.glue.before + wrapped + self.glue.after)
        if closed and ids and ids[0] in self.end_ids:
            return ids[1:]
        return ids

    def wrap_observation(self, text: str, budget: int) -> str:
        """The text in ``<information>`` tags, cut so that text and tags together have at most
        ``budget`` tokens. The cut comes before the wrapping: the closing tag is never lost.
        """
        kept = text[: self.fit(OBSERVATION_OPEN, text, OBSERVATION_CLOSE, budget)]
        return f"{OBSERVATION_OPEN}{kept}{OBSERVATION_CLOSE}"

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.encode(text))

    def fits(self, text: str, budget: int) -> bool:
        """Whether a text has at most ``budget`` tokens."""
        # A token stands for at least one byte, so a short text needs no count.
        return len(text.encode()) <= budget or self.count(text) <= budget

    def fit(self, before: str, text: str, after: str, budget: int) -> int:
        """How many characters of ``text`` may stand between ``before`` and ``after`` so that all
        three together have at most ``budget`` tokens. 0 where not even one may."""
        if self.fits(before + text + after, budget):
            return len(text)
        ends = self._token_ends(text)[: max(0, budget)]
        while ends:
            excess = self.count(before + text[: ends[-1]] + after) - budget
            if excess <= 0:
                return ends[-1]
            ends = ends[:-excess]
        return 0

    def _token_ends(self, text: str) -> list[int]:
        """Up to which character of ``text`` each of its tokens reaches."""
        if getattr(self.tokenizer, "is_fast", False):
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return [end for _, end in encoded["offset_mapping"]]
        return [min(end, len(text)) for _, end in self.offsets(self.encode(text))]

    def split_at_character(self, ids: list[int], cut: int) -> tuple[list[int], list[int]]:
        """Ends sampled ids at a character position of their text (specification section 4).

        Returns ``(sampled, rest)``: the leading ids whose text ends at or before ``cut``, and, when
        the next id runs across ``cut``, the ids of its part up to ``cut``. The rest was not
        sampled in this form, so it carries mask 0.
        """
        kept: list[int] = []
        reached = 0
        for token, (_, end) in zip(ids, self.offsets(ids), strict=True):
            if end > cut or reached == cut:
                break
            kept.append(token)
            reached = end
        return kept, self.encode(self.decode(ids)[reached:cut]) if reached < cut else []

    def offsets(self, ids: list[int]) -> list[tuple[int, int]]:
        """Character range of every id in ``decode(ids)``.

        A character that several ids make together belongs to the first of them, and the others
        have an empty range behind it. Special tokens have an empty range.
        """
        ends = self._piecewise_ends(ids)
        if ends and ends[-1] != len(self.decode(ids)):
            ends = [len(self.decode(ids[: count + 1])) for count in range(len(ids))]
        return list(pairwise([0, *ends]))

    def _piecewise_ends(self, ids: list[int]) -> list[int]:
        """Where the text of each id ends. Ids are decoded together as long as their text ends in
        the middle of a character, which then belongs to the first of them."""
        ends: list[int] = []
        pending: list[int] = []
        length = 0
        for token in ids:
            pending.append(token)
            piece = self.decode(pending) if len(pending) > 1 else self._piece(token)
            ends.append(length + len(piece))
            if not piece.endswith("\ufffd"):
                length, pending = ends[-1], []
        return ends

    def _piece(self, token: int) -> str:
        """The text of one id alone, decoded once."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self.decode([token])
        return piece

    @property
    def end_of_turn_id(self) -> int | None:
        """The id with which the chat template ends an assistant's turn; else any of ``end_ids``,
        ``None`` without one."""
        first = self.encode(self.glue.before)[:1]
        return next((one for one in (*first, *self.end_ids) if one in self.end_ids), None)

    def _end_of_turn_ids(self) -> frozenset[int]:
        first = self.encode(self.glue.before)[:1]
        if self.decode(first):
            first = []  # The template ends a turn with plain text, which no single id stands for.
        return frozenset(
            token for token in (*first, self.tokenizer.eos_token_id) if token is not None
        )
