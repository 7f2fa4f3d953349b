"""A tokenizer for models whose own is not known, such as hosted ones that are asked as chats.

Their rounds come as text, and limits are counted in tokens. This one cuts text into pieces of at
most six bytes at the borders of words, about as many as other tokenizers make of English, and
loses nothing: an id is its piece's bytes as a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_START: Final = "<|im_start|>"
_END: Final = "<|im_end|>"
_MARKS: Final = {_START: 1, _END: 2}
_TEXTS: Final = {token: mark for mark, token in _MARKS.items()}
_PIECES: Final = re.compile(
    rf"{re.escape(_START)}|{re.escape(_END)}|\s?[^\W\d_]+|\d+|\s+|[^\w\s]|_"
)
_MOST_BYTES: Final = 6


class StandInTokenizer:
    """What ``Conversation`` needs of a tokenizer."""

    is_fast: Final = False
    chat_template: Final = "ChatML"
    all_special_tokens: Final = [*_MARKS]
    eos_token_id: Final = _MARKS[_END]
    unk_token_id: Final = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The ids of a text; the two marks of ``chat_template`` are one id each."""
        assert not add_special_tokens
        return [token for piece in _PIECES.findall(text) for token in _ids(piece)]

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The text of ids, letter for letter."""
        kept = (one for one in ids if not (skip_special_tokens and one in _TEXTS))
        return b"".join(map(_bytes, kept)).decode("utf-8", "surrogatepass")

    def apply_chat_template(
        self,
        messages: Iterable[dict[str, str]],
        tokenize: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        """The messages in the form of ChatML."""
        assert not tokenize
        turns = (f"{_START}{one['role']}\n{one['content']}{_END}\n" for one in messages)
        return "".join(turns) + (f"{_START}assistant\n" if add_generation_prompt else "")

    def get_added_vocab(self) -> dict[str, int]:
        """The two marks."""
        return dict(_MARKS)

    def convert_tokens_to_ids(self, token: str) -> int:
        """The id of one of the two marks."""
        return _MARKS[token]


def _ids(piece: str) -> Iterator[int]:
    if piece in _MARKS:
        yield _MARKS[piece]
        return
    held = b""
    for character in piece:
        more = character.encode("utf-8", "surrogatepass")
        if len(held) + len(more) > _MOST_BYTES:
            yield _number(held)
            held = b""
        held += more
    yield _number(held)


def _number(piece: bytes) -> int:
    """A leading one keeps zero bytes, and numbers above those of the marks."""
    return int.from_bytes(b"\x01" + piece, "big")


def _bytes(token: int) -> bytes:
    if token in _TEXTS:
        return _TEXTS[token].encode()
    return token.to_bytes((token.bit_length() + 7) // 8, "big")[1:]
