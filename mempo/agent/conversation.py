"""Chat-template glue: from messages and sampled ids to token ids (specification section 4).

What the model sampled is never tokenized again. Everything between two sampled turns (the end of
the assistant's turn, the user turn with the observation, the next generation prompt) is rendered
by the tokenizer's own chat template around marker texts, cut out, and tokenized as one piece. The
pieces are glue: they carry mask 0.

Templates that rewrite earlier turns (Qwen3's drops earlier thoughts) cannot touch what was
sampled, because the markers stand where the turns would.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mempo.agent.protocol import OBSERVATION_CLOSE, OBSERVATION_OPEN
from mempo.runtime.errors import MempoError

_ASSISTANT = "ASSISTANTTURNMARKER"
_OBSERVATION = "OBSERVATIONTURNMARKER"


@dataclass(frozen=True)
class Glue:
    """Template text around an observation: from the end of the assistant's text to the start of
    the observation, and from its end to the start of the next generation."""

    before: str
    after: str


class Conversation:
    """Builds token ids for one tokenizer and its chat template.

    Raises ``MempoError`` when the tokenizer has no chat template, or when the template does not
    show its messages' text as it was given.
    """

    def __init__(self, tokenizer: Any, system_prompt: str) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise MempoError(
                "the tokenizer has no chat template: use an instruction-tuned model, or add a "
                "chat_template to its folder"
            )
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.glue = self._find_glue()
        self.end_ids = self._end_of_turn_ids()

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
        return self.encode(self._render(self._opening(user_text)))

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
        wrapped = f"{OBSERVATION_OPEN}{text}{OBSERVATION_CLOSE}"
        # A token stands for at least one byte, so a short text needs no count.
        if len(wrapped.encode()) <= budget or len(self.encode(wrapped)) <= budget:
            return wrapped
        kept = self.encode(text)[:budget]
        while kept:
            shortened = self.decode(kept).rstrip("\ufffd")
            wrapped = f"{OBSERVATION_OPEN}{shortened}{OBSERVATION_CLOSE}"
            excess = len(self.encode(wrapped)) - budget
            if excess <= 0:
                return wrapped
            kept = kept[:-excess]
        return f"{OBSERVATION_OPEN}{OBSERVATION_CLOSE}"

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
            piece = self.decode(pending)
            ends.append(length + len(piece))
            if not piece.endswith("\ufffd"):
                length, pending = ends[-1], []
        return ends

    def _opening(self, user_text: str) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": user_text},
        ]

    def _render(self, messages: list[dict[str, str]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    def _find_glue(self) -> Glue:
        opening = self._opening("QUESTIONMARKER")
        whole = self._render(
            [
                *opening,
                {"role": "assistant", "content": _ASSISTANT},
                {"role": "user", "content": _OBSERVATION},
            ]
        )
        prompt = self._render(opening)
        if whole.count(_ASSISTANT) != 1 or whole.count(_OBSERVATION) != 1:
            raise MempoError("the chat template does not show each message exactly once")
        if not whole.startswith(prompt + _ASSISTANT):
            raise MempoError(
                "the chat template's generation prompt is not how it starts an assistant turn, so "
                "a conversation cannot be continued piece by piece"
            )
        middle = whole.split(_ASSISTANT)[1]
        before, after = middle.split(_OBSERVATION)
        return Glue(before, after)

    def _end_of_turn_ids(self) -> frozenset[int]:
        first = self.encode(self.glue.before)[:1]
        if self.decode(first):
            first = []  # The template ends a turn with plain text, which no single id stands for.
        return frozenset(
            token for token in (*first, self.tokenizer.eos_token_id) if token is not None
        )
