"""Search with the scores of ``rank_bm25.BM25Okapi`` (the default retriever).

``BM25Okapi.get_scores`` walks over every document for each query word. Here its statistics are
turned once into an inverted index, so that a query costs as much as its words are frequent. The
scores are the same numbers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from mempo.retrieval.base import (
    Document,
    InMemoryRetriever,
    Page,
    PageIndex,
    Passage,
    found_passage,
)
from mempo.retrieval.words import query_words, words

__all__ = ["RankBm25Retriever", "words"]


class RankBm25Retriever(InMemoryRetriever):
    """BM25 over the titles and search texts of ``documents``, held in memory.

    A search returns only passages that share a word with the query; equal scores keep the corpus
    order. Words of the title count ``title_weight`` times. Nothing is written after construction,
    so threads may share one instance. Raises ``ValueError`` for an empty corpus.
    """

    def __init__(self, documents: Sequence[Document], title_weight: int = 1) -> None:
        if not documents:
            raise ValueError("the corpus holds no documents: nothing can be searched")
        self.documents = tuple(documents)
        self._pages = PageIndex(self.documents)
        self._postings = _postings(
            [
                words(document.title) * title_weight + words(document.search_text)
                for document in self.documents
            ]
        )

    def scores(self, query: str) -> NDArray[np.float64]:
        """The BM25 score of every document, in corpus order."""
        scores = np.zeros(len(self.documents))
        for word in query_words(query):
            if word in self._postings:
                indices, gains = self._postings[word]
                scores[indices] += gains
        return scores

    def search(self, query: str, top_k: int) -> list[Passage]:
        """The ``top_k`` best passages that share at least one word with the query."""
        asked = set(query_words(query))
        matches = [self._postings[word][0] for word in asked if word in self._postings]
        if not matches:
            return []
        candidates = np.unique(np.concatenate(matches))
        scores = self.scores(query)
        order = np.argsort(-scores[candidates], kind="stable")
        return [
            found_passage(self.documents[index], float(scores[index]))
            for index in candidates[order[:top_k]].tolist()
        ]

    def open_page(self, key: str) -> Page | None:
        """The page with this title or URL, or ``None``."""
        return self._pages.open_page(key)


def _postings(
    texts: list[list[str]],
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """For every word the documents that hold it and what it adds to their scores."""
    if not any(texts):
        return {}
    bm25 = BM25Okapi(texts)
    lengths = np.array(bm25.doc_len)
    counts: dict[str, tuple[list[int], list[int]]] = {}
    for index, frequencies in enumerate(bm25.doc_freqs):
        for word, frequency in frequencies.items():
            documents, numbers = counts.setdefault(word, ([], []))
            documents.append(index)
            numbers.append(frequency)
    postings = {}
    for word, (documents, numbers) in counts.items():
        indices = np.array(documents)
        frequency = np.array(numbers)
        length_factor = 1 - bm25.b + bm25.b * lengths[indices] / bm25.avgdl
        saturated = frequency * (bm25.k1 + 1) / (frequency + bm25.k1 * length_factor)
        postings[word] = (indices, (bm25.idf.get(word) or 0) * saturated)
    return postings
