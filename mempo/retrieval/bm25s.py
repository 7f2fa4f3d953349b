"""Search over an index on disk (``python -m mempo.retrieval.build``), memory-mapped.

Scores are those of ``rank_bm25.BM25Okapi`` rounded to float32, in matrices of the package bm25s.
A corpus of millions of passages is several such matrices, searched one after another.
"""

from __future__ import annotations

import mmap
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mempo.retrieval import index_files
from mempo.retrieval.base import (
    Document,
    Page,
    Passage,
    found_passage,
    joined_page,
    page_names,
)
from mempo.retrieval.corpus import document_of_line
from mempo.retrieval.index_files import IndexFileError, load_array, part_folder
from mempo.retrieval.postings import Postings, accumulator
from mempo.retrieval.words import query_words


def default_index(corpus: str | Path) -> Path:
    """The index folder beside a corpus: its name with ``.bm25s`` for its ending."""
    return Path(corpus).with_suffix(".bm25s")


class Bm25sRetriever:
    """BM25 over the titles and search texts of a corpus, through its index on disk.

    The results are those of ``RankBm25Retriever`` with the same ``title_weight``, up to scores
    that differ by less than float32 tells. Threads and processes may share one index. Raises
    ``IndexFileError``, which says what to run, when ``index`` is missing or was built from another
    corpus or with another title weight.
    """

    def __init__(self, corpus: str | Path, index: str | Path, title_weight: int = 1) -> None:
        corpus, index = Path(corpus), Path(index)
        command = index_files.build_command(corpus, index, title_weight)
        manifest = index_files.read_manifest(index, f"run `{command}`")
        index_files.check_fits(manifest, corpus, index, title_weight)
        self.passages = manifest.passages
        self._corpus = index / index_files.PASSAGES if manifest.copied else corpus
        try:
            self._lines = load_array(index / "lines.npy")
            self._words = _Table(index / "word_keys.npy", index / "word_ids.npy")
            self._pages = _Table(index / "page_keys.npy", index / "page_docs.npy")
            self._parts = [
                _open_part(part_folder(index, number), manifest.negative)
                for number in range(len(manifest.parts))
            ]
            with self._corpus.open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            raise IndexFileError(
                f"{index} is damaged ({error}): remove it, and run `{command}`"
            ) from error
        self._buffers = _Buffers(max(manifest.parts))
        accumulator()  # compiled now, not in the first search's time

    def search(self, query: str, top_k: int) -> list[Passage]:
        """The ``top_k`` best passages that share at least one word with the query."""
        return [
            found_passage(self._document(number), score)
            for number, score in self.best(query, top_k)
        ]

    def best(self, query: str, top_k: int) -> list[tuple[int, float]]:
        """Line numbers (from 0) and scores of the ``top_k`` best passages, best first."""
        weights: Counter[int] = Counter()
        for word, count in Counter(query_words(query)).items():
            for number in self._words.find(word):
                weights[number] += count
        best: list[tuple[int, float]] = []
        first = 0
        with self._buffers.one() as buffer:
            for part in self._parts:
                floor = best[top_k - 1][1] if len(best) >= top_k else float("-inf")
                passages, scores = part.best(weights, top_k, floor, buffer)
                numbers = (passages + np.int64(first)).tolist()
                best += zip(numbers, scores.tolist(), strict=True)
                best = sorted(best, key=lambda one: (-one[1], one[0]))[:top_k]
                first += part.passages
        return best

    def open_page(self, key: str) -> Page | None:
        """The page with this title or URL, or ``None``; as ``PageIndex`` finds it."""
        for name in page_names(key):
            folded = name.casefold()
            if not folded:
                continue
            alike = [
                document
                for document in map(self._document, self._pages.find(folded))
                if folded in (document.name.casefold(), document.url.casefold())
            ]
            exact = [one for one in alike if name in (one.name, one.url)]
            if found := exact or alike:
                return joined_page(found)
        return None

    def close(self) -> None:
        """Lets go of the corpus file."""
        self._text.close()

    def _document(self, number: int) -> Document:
        line = self._text[int(self._lines[number]) : int(self._lines[number + 1])]
        # A line that its build left out may follow.
        return document_of_line(line.partition(b"\n")[0], self._corpus, number + 1)


class _Table:
    """Numbers by the hash of a text; one text may have several."""

    def __init__(self, keys: Path, values: Path) -> None:
        self._keys: NDArray[np.uint64] = load_array(keys)
        self._values: NDArray[np.int32] = load_array(values)

    def find(self, text: str) -> list[int]:
        key = np.uint64(index_files.key_hash(text))
        start = np.searchsorted(self._keys, key, side="left")
        end = np.searchsorted(self._keys, key, side="right")
        found: list[int] = self._values[start:end].tolist()
        return found


class _Buffers:
    """Arrays of zeros, one for every search that runs at the same time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._free: list[NDArray[np.float32]] = []

    @contextmanager
    def one(self) -> Iterator[NDArray[np.float32]]:
        """A buffer of zeros. One that an exception left dirty is not used again."""
        with self._lock:
            buffer = self._free.pop() if self._free else np.zeros(self._size, np.float32)
        yield buffer
        with self._lock:
            self._free.append(buffer)


def _open_part(folder: Path, negative: bool) -> Postings:
    import bm25s  # here, since it takes numba along: a second that other retrievers need not wait

    matrix: dict[str, Any] = bm25s.BM25.load(folder, mmap=True, load_vocab=False).scores
    return Postings(
        np.asarray(matrix["indptr"]),
        np.asarray(matrix["indices"]),
        np.asarray(matrix["data"]),
        load_array(folder / "upper.npy"),
        matrix["num_docs"],
        negative,
    )
