"""The external memory of one trajectory: pieces of what was seen, searched by BM25.

Scores are those of ``rank_bm25.BM25Plus``. ``BM25Okapi``, which the run's own retriever has, gives
a word that stands in half of the texts or more no weight or a negative one: in a large corpus there
is hardly any, but in a store of a few pieces it is the question's own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rank_bm25 import BM25Plus

from mempo.config.contexts import RetrievalMemoryConfig
from mempo.retrieval.words import query_words, words

HEADING: Final = "Recalled from earlier rounds:"

_NUMBER: Final = re.compile(r"^\d+\. ")
_WORD: Final = re.compile(r"\S+\s*")


class PieceStore:
    """Pieces in the order in which they were seen, each text once."""

    def __init__(self, config: RetrievalMemoryConfig) -> None:
        self._config = config
        self._pieces: dict[str, None] = {}

    def add(self, text: str) -> None:
        """Keeps a text, line by line."""
        self._pieces.update(dict.fromkeys(self._cut(text)))

    def best(self, query: str, shown: str) -> list[str]:
        """The best pieces that share a word with ``query``, best first; none that stands in
        ``shown``, a text as ``add`` takes it."""
        there = set(self._cut(shown))
        left = {piece: words(piece) for piece in self._pieces if piece not in there}
        asked = query_words(query)
        sharing = [piece for piece, own in left.items() if not set(asked).isdisjoint(own)]
        if not sharing:
            return []
        scores = dict(zip(left, BM25Plus(list(left.values())).get_scores(asked), strict=True))
        # Equal scores keep the order in which the pieces were seen.
        return sorted(sharing, key=lambda piece: -scores[piece])[: self._config.pieces]

    def _cut(self, text: str) -> Iterator[str]:
        """Lines without the number of a search result, of at most ``piece_words`` words each."""
        most = self._config.piece_words
        for line in text.splitlines():
            words = _WORD.findall(_NUMBER.sub("", line.strip()))
            for start in range(0, len(words), most):
                yield "".join(words[start : start + most]).rstrip()


def listed(pieces: list[str]) -> str:
    """Pieces as a round is shown them."""
    numbered = (f"{number}. {piece}" for number, piece in enumerate(pieces, start=1))
    return "\n".join([HEADING, *numbered])
