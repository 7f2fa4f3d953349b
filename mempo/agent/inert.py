"""Foreign text without tags and control marks (specification section 2).

Questions, passages, pages and titles come from outside. What they hold must not read as the
protocol's tags, and must not become one of the tokenizer's control ids. Both are turned into
readable words: ``<answer>`` becomes ``(answer)``, ``<|im_end|>`` becomes ``(im_end)``, ``[INST]``
becomes ``(INST)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

_TAGS: Final = (
    *("mem", "think", "search", "access", "answer", "information"),
    *("tool_call", "tool_response", "start_of_turn", "end_of_turn"),
    *("bos", "eos", "pad", "unk", "s"),
)
_MARK: Final = re.compile(r"<\s*[|\uff5c]\s*([^<>|\uff5c]*?)\s*[|\uff5c]\s*>")
_BRACKETS: Final = re.compile(r"^[^\w/]+|[^\w/]+$")
_WORDS: Final = re.compile(r"[\w\s]+")
_SPACE_LETTER: Final = "\u2581"  # how SentencePiece vocabularies write a space
_MOST_PASSES: Final = 8


def make_inert(text: str, tags: Sequence[str] = ()) -> str:
    """Turns protocol tags and the usual chat-template marks inside foreign text into words.

    ``<answer>`` becomes ``(answer)`` and ``<|im_end|>`` becomes ``(im_end)``, in any case and
    with white space inside; all other text stays as it is. ``tags`` are those of further tools.
    """
    return _MARK.sub(r"(\1)", _tag(tuple(tags)).sub(r"(\1\2\3)", text))


@cache
def _tag(more: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join([*_TAGS, *(tag for tag in more if tag not in _TAGS)])
    return re.compile(rf"<\s*(/?)\s*({names})\s*(/?)\s*>", re.IGNORECASE)


@dataclass(frozen=True)
class ControlMark:
    """One special or added token of a tokenizer.

    ``alone``: it is recognized only where no word character touches it. ``normalized``: it is
    looked for in the text as the tokenizer's normalizer leaves it.
    """

    id: int
    text: str
    alone: bool = False
    normalized: bool = False


class InertText:
    """``make_inert``, and no text that the tokenizer would read as one of its control marks.

    Control marks are all special and added tokens, but white space and words that somebody added
    to the vocabulary: those are ordinary text. ``control_ids`` are their ids; the id of unknown
    characters is none of them. ``tags`` are those of the run's tools.
    """

    def __init__(self, tokenizer: Any, tags: Sequence[str] = ()) -> None:
        self._tags = tuple(tags)
        self.marks = control_marks(tokenizer)
        unknown = getattr(tokenizer, "unk_token_id", None)
        self.control_ids = frozenset(mark.id for mark in self.marks) - {unknown}
        longest_first = sorted(self.marks, key=lambda mark: -len(mark.text))
        self._pattern = re.compile("|".join(map(_expression, longest_first)) or r"(?!)")
        self._words = {mark.text: self._readable(mark.text) for mark in self.marks}
        # A mark that is looked for after normalization can hide behind other letters.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        hides = any(mark.normalized for mark in self.marks)
        self._normalizes = hides and getattr(backend, "normalizer", None) is not None
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> str:
        """The text with every tag and mark as words, all else as it is."""
        text = make_inert(text, self._tags)
        text = self._pattern.sub(lambda found: self._words[found[0]], text)
        return self._without_hidden_marks(text) if self._normalizes else text

    def _readable(self, mark: str) -> str:
        """``(name)`` for a mark of brackets around a name, else its characters set apart."""
        name = _BRACKETS.sub("", mark)
        words = f"({name})"
        if name and name != mark and not self._pattern.search(words):
            return words
        return " ".join(mark) if len(mark) > 1 else "?"

    def _without_hidden_marks(self, text: str) -> str:
        """Sets apart the characters that the tokenizer itself still reads as a control mark."""
        for _ in range(_MOST_PASSES):
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            found = [
                place
                for token, place in zip(
                    encoded["input_ids"], encoded["offset_mapping"], strict=True
                )
                if token in self.control_ids
            ]
            if not found:
                break
            for start, end in reversed(found):
                text = text[:start] + " ".join(text[start:end].strip()) + text[end:]
        return text


def control_marks(tokenizer: Any) -> tuple[ControlMark, ...]:
    """All special and added tokens of a tokenizer that are no ordinary text."""
    found: dict[str, ControlMark] = {}
    special = set(tokenizer.all_special_tokens)
    for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items():
        text = str(added.content)
        if added.special or text in special or not _is_ordinary(text):
            found[text] = ControlMark(int(token), text, added.single_word, added.normalized)
    for text, token in tokenizer.get_added_vocab().items():
        if text in special or not _is_ordinary(text):
            found.setdefault(text, ControlMark(int(token), text))
    for text in special:
        found.setdefault(text, ControlMark(int(tokenizer.convert_tokens_to_ids(text)), text))
    return tuple(mark for mark in found.values() if mark.text.replace(_SPACE_LETTER, " ").strip())


def _is_ordinary(text: str) -> bool:
    """True for words and white space that were added to a vocabulary."""
    return _WORDS.fullmatch(text.replace(_SPACE_LETTER, " ")) is not None


def _expression(mark: ControlMark) -> str:
    plain = re.escape(mark.text)
    return rf"(?<!\w){plain}(?!\w)" if mark.alone else plain
