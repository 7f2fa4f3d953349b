"""Retrievers behind one interface, one file per kind (specification section 11)."""

from mempo.retrieval.base import (
    Document,
    InMemoryRetriever,
    Page,
    Passage,
    RetrievalError,
    Retriever,
)
from mempo.retrieval.bm25s import Bm25sRetriever
from mempo.retrieval.corpus import read_corpus
from mempo.retrieval.http import HttpRetriever
from mempo.retrieval.index_files import IndexFileError
from mempo.retrieval.rank_bm25 import RankBm25Retriever
from mempo.retrieval.registry import build_retriever

__all__ = [
    "Bm25sRetriever",
    "Document",
    "HttpRetriever",
    "InMemoryRetriever",
    "IndexFileError",
    "Page",
    "Passage",
    "RankBm25Retriever",
    "RetrievalError",
    "Retriever",
    "build_retriever",
    "read_corpus",
]
