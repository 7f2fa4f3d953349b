"""From the configuration to the retriever that it names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mempo.config import RetrieverConfig
from mempo.retrieval.base import Document, Retriever
from mempo.retrieval.bm25s import Bm25sRetriever, default_index
from mempo.retrieval.corpus import read_corpus
from mempo.retrieval.http import HttpRetriever
from mempo.retrieval.rank_bm25 import RankBm25Retriever
from mempo.row_files.told import Told
from mempo.runtime.errors import ConfigError


def build_retriever(
    config: RetrieverConfig,
    corpus: str | Path | Sequence[Document] | None,
    skip_bad_rows: bool = False,
    told: Told | None = None,
) -> Retriever:
    """The retriever of ``retriever.kind``, ready for its first search.

    ``corpus`` is a corpus file, documents in memory, or ``None`` where a server holds the corpus.
    ``skip_bad_rows`` and ``told`` are those of ``read_corpus``; an index was built with its own.
    Raises ``ConfigError`` when they do not fit, ``DataError`` for a faulty corpus,
    ``IndexFileError`` for an index that is missing or another corpus's, and ``ServerError`` when
    no server answers in time or it speaks another protocol.
    """
    if config.kind == "http":
        retriever = HttpRetriever(config)
        retriever.wait_until_ready(lambda text: print(text, file=sys.stderr, flush=True))
        return retriever
    if corpus is None:
        raise ConfigError(f"retriever.kind={config.kind} needs a corpus: give data.corpus")
    if config.kind == "rank_bm25":
        documents = (
            read_corpus(corpus, skip_bad_rows, told) if isinstance(corpus, (str, Path)) else corpus
        )
        return RankBm25Retriever(documents, config.title_weight)
    if not isinstance(corpus, (str, Path)):
        raise ConfigError(
            "retriever.kind=bm25s searches the index of a corpus file, and these passages stand in "
            "no file of their own: give data.corpus=<file.jsonl>, or use retriever=rank_bm25"
        )
    index = default_index(corpus) if config.index is None else Path(config.index)
    with suppress(RuntimeError):  # ~ of nobody: the path as it stands, which there is not
        index = index.expanduser()
    return Bm25sRetriever(corpus, index, config.title_weight)
