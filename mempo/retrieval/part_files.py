"""Writing the parts and tables of an index (``index_files`` says what stands in them).

While a build runs a part also holds ``build-*`` files: word counts, passage lengths, its new words,
line starts, and hashes of ids and page names. From them the scores are computed once the whole
corpus has been read, as often as it takes to come through.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mempo.retrieval.base import Document
from mempo.retrieval.corpus import document_of_line, line_number
from mempo.retrieval.index_files import Piece, key_hash, load_array, part_folder
from mempo.row_files.rows import DataError
from mempo.runtime.progress import ProgressBar

K1: Final = 1.5
B: Final = 0.75
EPSILON: Final = 0.25
"""The parameters of ``rank_bm25.BM25Okapi``."""

_BLOCK: Final = 4_000_000


@dataclass(frozen=True)
class PartState:
    """What a build that goes on needs of a finished part."""

    piece: Piece
    passages: int
    words: list[str]
    """The words that stand in no earlier part, in the order of their numbers."""


class PartWriter:
    """Gathers the passages of one part: ``start`` is its first byte in the corpus file, and
    ``first_word`` the number that the next new word gets."""

    def __init__(self, start: int, first_word: int) -> None:
        self.start, self.first_word = start, first_word
        self._numbers = array("i")
        self._lengths = array("i")
        self._lines = array("q")
        self._ids = array("Q")
        self._page_keys = array("Q")
        self._page_passages = array("i")

    @property
    def passages(self) -> int:
        """Passages so far."""
        return len(self._lengths)

    @property
    def words(self) -> int:
        """Words so far."""
        return len(self._numbers)

    def add(self, document: Document, numbers: array[int], position: int) -> None:
        """Adds a passage that starts at byte ``position``, with the ``numbers`` of its words."""
        for name in {document.name.casefold(), document.url.casefold()} - {""}:
            self._page_keys.append(key_hash(name))
            self._page_passages.append(self.passages)
        self._numbers.extend(numbers)
        self._lengths.append(len(numbers))
        self._lines.append(position)
        self._ids.append(key_hash(document.id))

    def write(self, folder: Path, piece: Piece, new_words: Sequence[str]) -> None:
        """Sorts the words and writes the part, without scores, into ``folder``."""
        lengths = np.array(self._lengths, np.int32)
        # One sort by (word, passage): a word's passages come out ascending, equal pairs together.
        pairs = np.array(self._numbers, np.int64)
        pairs <<= 32
        pairs |= np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        pairs.sort()
        first = np.ones(len(pairs), bool)
        np.not_equal(pairs[1:], pairs[:-1], out=first[1:])
        starts = np.flatnonzero(first)
        counts = np.diff(starts, append=len(pairs))
        pairs = pairs[starts]
        frequency = np.bincount(pairs >> 32, minlength=self.first_word + len(new_words))
        indptr = np.zeros(len(frequency) + 1, np.int64)
        np.cumsum(frequency, out=indptr[1:])
        _save(folder, "indices.csc.index", (pairs & 0xFFFFFFFF).astype(np.int32))
        _save(folder, "indptr.csc.index", indptr)
        _save(folder, "build-counts", counts.astype(np.uint32))
        _save(folder, "build-lengths", lengths)
        _save(folder, "build-lines", np.array(self._lines, np.int64))
        _save(folder, "build-ids", np.array(self._ids, np.uint64))
        _save(folder, "build-page-keys", np.array(self._page_keys, np.uint64))
        _save(folder, "build-page-passages", np.array(self._page_passages, np.int32))
        (folder / "build-words.txt").write_text("\n".join(new_words), encoding="utf-8")
        state = {"piece": asdict(piece), "passages": self.passages}
        (folder / "build-state.json").write_text(json.dumps(state), encoding="utf-8")


def read_part_state(folder: Path) -> PartState:
    """The state of a part that ``PartWriter`` wrote."""
    state = json.loads((folder / "build-state.json").read_text(encoding="utf-8"))
    text = (folder / "build-words.txt").read_text(encoding="utf-8")
    return PartState(Piece(**state["piece"]), state["passages"], text.split("\n") if text else [])


def write_tables(work: Path, lines: Path, parts: Sequence[int], vocabulary: Sequence[str]) -> None:
    """Line starts in the file of passages ``lines``, and the tables of words and of page names.

    Raises ``DataError`` when an id stands twice in the corpus.
    """
    folders = [part_folder(work, number) for number in range(len(parts))]
    starts = np.concatenate([load_array(folder / "build-lines.npy") for folder in folders])
    _refuse_equal_ids(folders, lines, starts)
    _save(work, "lines", np.append(starts, lines.stat().st_size))
    keys = np.fromiter(map(key_hash, vocabulary), np.uint64, len(vocabulary))
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys = keys[order]
    if np.any(keys[1:] == keys[:-1]):
        raise RuntimeError("two words of the corpus have one 64-bit hash: please report this")
    _save(work, "word_keys", keys)
    _save(work, "word_ids", order)
    keys = np.concatenate([load_array(folder / "build-page-keys.npy") for folder in folders])
    first = np.concatenate([[0], np.cumsum(parts)]).astype(np.int32)
    passages = np.concatenate(
        [
            load_array(folder / "build-page-passages.npy") + offset
            for folder, offset in zip(folders, first[:-1], strict=True)
        ]
    )
    by_key = np.argsort(keys, kind="stable")
    _save(work, "page_keys", keys[by_key])
    _save(work, "page_docs", passages[by_key].astype(np.int32))


def _refuse_equal_ids(folders: Sequence[Path], corpus: Path, starts: NDArray[np.int64]) -> None:
    """Two lines with one id hash are read again, to see whether they have one id."""
    hashes = np.concatenate([load_array(folder / "build-ids.npy") for folder in folders])
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    with corpus.open("rb") as file:
        for place in same[:1000]:
            first, second = sorted(order[place : place + 2].tolist())
            ids = []
            for line in (first, second):
                file.seek(int(starts[line]))
                ids.append(document_of_line(file.readline(), corpus, line + 1).id)
            if ids[0] == ids[1]:
                raise DataError(
                    f'{corpus}:{line_number(corpus, int(starts[second]))}: the id "{ids[1]}" '
                    f"stands already on line {line_number(corpus, int(starts[first]))}: give every "
                    "document its own"
                )


def write_scores(work: Path, parts: Sequence[int], vocabulary_size: int, bar: ProgressBar) -> bool:
    """Every part's scores by the formula of ``BM25Okapi`` over the whole corpus; returns whether
    any is negative. The parts then open with ``bm25s.BM25.load`` too."""
    folders = [part_folder(work, number) for number in range(len(parts))]
    frequency = np.zeros(vocabulary_size, np.int64)
    total_length = 0
    for folder in folders:
        here = np.diff(load_array(folder / "indptr.csc.index.npy"))
        frequency[: len(here)] += here
        total_length += int(load_array(folder / "build-lengths.npy").sum(dtype=np.int64))
    weight = _inverse_frequency(frequency, sum(parts))
    mean_length = max(total_length / sum(parts), 1e-9)
    for folder, passages in zip(folders, parts, strict=True):
        _score_part(folder, passages, weight, mean_length)
        bar.advance(1)
    return bool(np.any(weight < 0))


def _inverse_frequency(frequency: NDArray[np.int64], passages: int) -> NDArray[np.float64]:
    """Okapi's weight of each word; words in more than half of the passages get a share of the
    mean."""
    weight = np.log(passages - frequency + 0.5) - np.log(frequency + 0.5)
    if len(weight):
        weight[weight < 0] = EPSILON * weight.mean()
    return np.asarray(weight, np.float64)


def _score_part(
    folder: Path, passages: int, weight: NDArray[np.float64], mean_length: float
) -> None:
    indptr = load_array(folder / "indptr.csc.index.npy")
    indices = load_array(folder / "indices.csc.index.npy")
    counts = load_array(folder / "build-counts.npy")
    lengths = load_array(folder / "build-lengths.npy")
    saturation = K1 * (1 - B + B * lengths / mean_length)
    scores = np.empty(len(indices), np.float32)
    for start in range(0, len(indices), _BLOCK):
        end = min(start + _BLOCK, len(indices))
        low = int(np.searchsorted(indptr, start, side="right")) - 1
        high = int(np.searchsorted(indptr, end, side="left"))
        entries = np.diff(np.clip(indptr[low : high + 1], start, end))
        word = np.repeat(np.arange(low, high), entries)
        count = counts[start:end].astype(np.float64)
        scores[start:end] = (
            weight[word] * count * (K1 + 1) / (count + saturation[indices[start:end]])
        )
    upper = np.zeros(len(indptr) - 1, np.float32)
    present = np.flatnonzero(np.diff(indptr))
    if len(present):
        upper[present] = np.maximum.reduceat(scores, indptr[present])
    _save(folder, "data.csc.index", scores)
    _save(folder, "upper", upper)
    parameters = {
        "k1": K1,
        "b": B,
        "delta": 0.5,
        "method": "atire",
        "idf_method": "robertson",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": passages,
        "version": version("bm25s"),
        "backend": "numpy",
    }
    (folder / "params.index.json").write_text(json.dumps(parameters), encoding="utf-8")


def _save(folder: Path, name: str, values: NDArray[Any]) -> None:
    """Writes what ``np.save`` writes, which loses the end of an array without a word where a disk
    is full. Raises ``OSError``."""
    values = np.ascontiguousarray(values)
    with (folder / f"{name}.npy").open("wb") as file:
        header = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        if values.size:
            file.write(values.view(np.uint8).data)
