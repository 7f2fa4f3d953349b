"""Retrievers behind one interface, one file per kind (specification section 11)."""

from mempo.retrieval.base import (
    Document,
    InMemoryRetriever,
    Page,
    Passage,
    RetrievalError,
    Retriever,
)
from mempo.retrieval.corpus import read_corpus
from mempo.retrieval.rank_bm25 import RankBm25Retriever

__all__ = [
    "Document",
    "InMemoryRetriever",
    "Page",
    "Passage",
    "RankBm25Retriever",
    "RetrievalError",
    "Retriever",
    "read_corpus",
]
