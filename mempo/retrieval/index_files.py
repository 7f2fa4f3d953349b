"""The files of an index on disk, and whether it still fits its corpus.

    index.json      what the index was built from, and its sizes
    lines.npy       int64 [passages + 1]: where each passage starts, in bytes of its file
    word_keys.npy   uint64 [words], sorted: hashes of the words; word_ids.npy: int32 their numbers
    page_keys.npy   uint64, sorted: hashes of titles and URLs in folded case; page_docs.npy: int32
                    the passages, in corpus order where a key stands several times
    passages.jsonl  the passages, of a corpus that is packed or one JSON document; else they stay
                    in the corpus, where each stands on a line
    part-00000/     the scores of consecutive passages in the form of the package bm25s: a sparse
                    matrix, words by passages, that bm25s opens as well; upper.npy: float32 [words]
                    the largest score of each word

Everything but ``index.json`` is memory-mapped; no file is a pickle. Two words with one 64-bit hash
would be one word; the build checks that there are none, and a word outside the corpus meets one of
10 million with a chance of 5e-13.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mempo.retrieval.words import TOKENIZER
from mempo.runtime.errors import MempoError
from mempo.runtime.program import command

FORMAT: Final = 1
"""Raise it when the code that builds indexes changes what they hold."""

MOST_TITLE_WEIGHT: Final = 1_000
"""As ``retriever.title_weight``."""

MANIFEST: Final = "index.json"
PASSAGES: Final = "passages.jsonl"
HASH_BLOCK: Final = 1 << 24


class IndexFileError(MempoError):
    """An index that is missing, unfinished, or made for another corpus; the message says what to
    run."""


@dataclass(frozen=True)
class Piece:
    """A stretch of the corpus file: bytes ``start`` to ``end``, and their BLAKE2b hash."""

    start: int
    end: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What an index was built from. ``modified_ns`` is the corpus file's time of change."""

    corpus_bytes: int
    modified_ns: int
    pieces: tuple[Piece, ...]
    title_weight: int
    passages: int
    words: int
    parts: tuple[int, ...]
    """Passages of each part."""
    negative: bool
    """Whether any score is below zero (corpora of a few passages)."""
    copied: bool = False
    """Whether the passages stand in a file of the index."""
    format: int = FORMAT
    tokenizer: int = TOKENIZER
    """How texts were split into words (``mempo.retrieval.words``)."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes ``index.json``."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")


def read_manifest(folder: Path, remedy: str) -> Manifest:
    """Reads ``index.json``. Raises ``IndexFileError`` that ends with ``remedy``."""
    try:
        fields: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise IndexFileError(f"{folder} was built by another version of this program: {remedy}")
        if fields.get("tokenizer", 1) != TOKENIZER:
            raise IndexFileError(
                f"{folder} was built when texts were split into words in another way, without the "
                f"pairs of characters of scripts that write no spaces: build it again: {remedy}"
            )
        pieces = tuple(Piece(**piece) for piece in fields.pop("pieces"))
        manifest = Manifest(pieces=pieces, parts=tuple(fields.pop("parts")), **fields)
        numbers = (*manifest.parts, manifest.title_weight, *(piece.end for piece in pieces))
        if not manifest.parts or not all(type(one) is int and one > 0 for one in numbers):
            raise ValueError("its fields are no sizes of an index")
        return manifest
    except FileNotFoundError:
        raise IndexFileError(f"{folder}: there is no index: {remedy}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or error
        raise IndexFileError(f"{folder / MANIFEST} cannot be read ({cause}): {remedy}") from None


def build_command(corpus: Path, index: Path, title_weight: int) -> str:
    """The command that builds this index."""
    weight = "" if title_weight == 1 else f" --title-weight {title_weight}"
    paths = f"{shlex.quote(str(corpus))} {shlex.quote(str(index))}"
    return f"{command('index', 'mempo.retrieval.build')} {paths}{weight}"


def check_fits(manifest: Manifest, corpus: Path, index: Path, title_weight: int) -> None:
    """Raises ``IndexFileError`` when ``corpus`` is not what the index was built from.

    Size and time of change are compared; where only the time differs (a copied file), the
    contents. A change that keeps both is not seen.
    """
    command = build_command(corpus, index, title_weight)
    if manifest.title_weight != title_weight:
        raise IndexFileError(
            f"{index} was built with titles counted {manifest.title_weight} times, but "
            f"retriever.title_weight={title_weight}: set it to {manifest.title_weight}, or run "
            f"`{command}`"
        )
    if not corpus_unchanged(manifest, corpus):
        raise IndexFileError(
            f"{index} was built from another text than {corpus} holds now: run `{command}`"
        )


def corpus_unchanged(manifest: Manifest, corpus: Path) -> bool:
    """Whether the corpus is still what the index was built from. Raises ``IndexFileError`` when it
    cannot be read."""
    try:
        state = corpus.stat()
        if state.st_size != manifest.corpus_bytes:
            return False
        if state.st_mtime_ns == manifest.modified_ns:
            return True
        return all(digest(corpus, p.start, p.end) == p.digest for p in manifest.pieces)
    except OSError as error:
        raise IndexFileError(
            f"{corpus}: the corpus cannot be read ({error.strerror or error}): give the file that "
            "the index was built from"
        ) from None


def digest(path: Path, start: int, end: int) -> str:
    """The BLAKE2b hash of a stretch of a file, in hexadecimal digits."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (block := file.read(min(HASH_BLOCK, end - start))):
            state.update(block)
            start += len(block)
    return state.hexdigest()


def key_hash(text: str) -> int:
    """A 64-bit hash, the same in every process."""
    raw = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(raw, "little")


def load_array(path: Path) -> NDArray[Any]:
    """A memory-mapped array as a plain one: slices of ``np.memmap`` cost ten times as much."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(array)


def part_folder(folder: Path, number: int) -> Path:
    """Where part ``number`` stands."""
    return folder / f"part-{number:05d}"
