"""Builds an index on disk, once: ``python -m mempo.retrieval.build CORPUS OUTPUT``.

The corpus is read in one pass. Its words are numbered as they come; whenever ``part_words`` words
have been read they are sorted into a part and written, so that memory holds one part and the
vocabulary, whatever the corpus. Scores need the frequencies of the whole corpus: they are computed
part by part at the end, with the formula and parameters of ``rank_bm25.BM25Okapi``. The matrices
have the form of the package bm25s; its own build is not used because it holds the whole corpus as
Python lists.

Everything is written to OUTPUT.building, which is renamed at the end. A build that was stopped
goes on after its last finished part, or starts over when the corpus has changed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mempo.retrieval import index_files
from mempo.retrieval.base import Document
from mempo.retrieval.corpus import document_of_line
from mempo.retrieval.index_files import IndexFileError, Manifest, Piece, part_folder
from mempo.retrieval.part_files import PartWriter, read_part_state, write_scores, write_tables
from mempo.retrieval.rank_bm25 import words
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command
from mempo.runtime.progress import ProgressBar, progress_bar
from mempo.runtime.rows import DataError

PART_WORDS: Final = 50_000_000
"""Words of a part: about 500,000 passages of 100 words, sorted within about 2 GB of memory."""

_MEGABYTE: Final = 1_000_000


def build_index(
    corpus: str | Path,
    output: str | Path,
    title_weight: int = 1,
    part_words: int = PART_WORDS,
    show_progress: bool = False,
) -> bool:
    """Builds the index of a JSON-lines corpus (specification section 11); ``False`` when
    ``output`` already holds it.

    Words of titles count ``title_weight`` times. Raises ``DataError`` for a faulty corpus, with
    file and line, and ``IndexFileError`` when ``output`` is something else than an index, or
    another build of it is running.
    """
    corpus, output = Path(corpus), Path(output)
    if _is_current(corpus, output, title_weight):
        return False
    work = output.with_name(output.name + ".building")
    work.mkdir(parents=True, exist_ok=True)
    with _only_build(work):
        plan = _plan(corpus, title_weight, part_words)
        if _plan_of(work) != plan:
            _clear(work)
            (work / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        reader = _Reader(corpus, work, title_weight, part_words)
        with progress_bar(
            "reading passages (MB)", plan["bytes"] // _MEGABYTE, enabled=show_progress
        ) as bar:
            reader.read(bar)
        manifest = _finish(work, plan, reader, show_progress)
        if _plan(corpus, title_weight, part_words) != plan:
            raise IndexFileError(f"{corpus} changed while its index was built: build it again")
        index_files.write_manifest(work, manifest)
        _put_in_place(work, output)
    return True


def _is_current(corpus: Path, output: Path, title_weight: int) -> bool:
    """Whether ``output`` is this corpus's index. Raises ``IndexFileError`` for a foreign folder."""
    if not output.exists():
        return False
    remedy = "name another folder, or remove this one"
    if not (output / index_files.MANIFEST).is_file():
        raise IndexFileError(f"{output} exists and is no index: {remedy}")
    try:
        manifest = index_files.read_manifest(output, remedy)
    except IndexFileError:
        return False  # an index of another version, to be replaced
    return manifest.title_weight == title_weight and index_files.corpus_unchanged(manifest, corpus)


def _plan(corpus: Path, title_weight: int, part_words: int) -> dict[str, int]:
    try:
        state = corpus.stat()
    except OSError as error:
        raise DataError(f"{corpus}: cannot be read ({error.strerror or error})") from error
    return {
        "format": index_files.FORMAT,
        "bytes": state.st_size,
        "modified_ns": state.st_mtime_ns,
        "title_weight": title_weight,
        "part_words": part_words,
    }


def _plan_of(work: Path) -> Any:
    """What an earlier build was about, ``None`` when there was none."""
    try:
        return json.loads((work / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _clear(work: Path) -> None:
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()


@contextmanager
def _only_build(work: Path) -> Iterator[None]:
    """One build at a time; the lock goes with the process that holds it."""
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise IndexFileError(f"another build is writing to {work}: wait for it") from None
        yield


class _Reader:
    """Reads the corpus from where an earlier build stopped, and writes parts."""

    def __init__(self, corpus: Path, work: Path, title_weight: int, part_words: int) -> None:
        self.corpus, self.work = corpus, work
        self.title_weight, self.part_words = title_weight, part_words
        self.vocabulary: defaultdict[str, int] = defaultdict()
        self.vocabulary.default_factory = self.vocabulary.__len__
        self.pieces: list[Piece] = []
        self.parts: list[int] = []
        while (folder := part_folder(work, len(self.parts))).is_dir():
            state = read_part_state(folder)
            self.pieces.append(state.piece)
            self.parts.append(state.passages)
            for word in state.words:
                self.vocabulary[word]  # its default is the next number

    def read(self, bar: ProgressBar) -> None:
        """Reads on to the end of the corpus."""
        start = self.pieces[-1].end if self.pieces else 0
        passages, told = sum(self.parts), start // _MEGABYTE
        bar.advance(told)
        writer = self._writer(start)
        with self.corpus.open("rb") as file:
            file.seek(start)
            position = start
            for line in file:
                passages += 1
                document = document_of_line(line, self.corpus, passages)
                writer.add(document, self._numbers(document), position)
                position += len(line)
                if position // _MEGABYTE > told:
                    bar.advance(position // _MEGABYTE - told)
                    told = position // _MEGABYTE
                if writer.words >= self.part_words:
                    self._write(writer, position)
                    writer = self._writer(position)
        if writer.passages:
            self._write(writer, position)
        if not self.parts:
            raise DataError(f"{self.corpus}: the file is empty: give one JSON object per line")

    def _numbers(self, document: Document) -> array[int]:
        found = words(document.title) * self.title_weight + words(document.search_text)
        return array("i", map(self.vocabulary.__getitem__, found))

    def _writer(self, start: int) -> PartWriter:
        return PartWriter(start, len(self.vocabulary))

    def _write(self, writer: PartWriter, end: int) -> None:
        """Writes one part under a temporary name and renames it."""
        folder = part_folder(self.work, len(self.parts))
        temporary = folder.with_suffix(".writing")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        piece = Piece(writer.start, end, index_files.digest(self.corpus, writer.start, end))
        writer.write(temporary, piece, list(self.vocabulary)[writer.first_word :])
        temporary.rename(folder)
        self.pieces.append(piece)
        self.parts.append(writer.passages)


def _finish(work: Path, plan: dict[str, int], reader: _Reader, show_progress: bool) -> Manifest:
    """Scores and tables, from parts that are complete."""
    write_tables(work, reader.corpus, reader.parts, list(reader.vocabulary))
    with progress_bar("scoring parts", len(reader.parts), enabled=show_progress) as bar:
        negative = write_scores(work, reader.parts, len(reader.vocabulary), bar)
    return Manifest(
        corpus_bytes=plan["bytes"],
        modified_ns=plan["modified_ns"],
        pieces=tuple(reader.pieces),
        title_weight=plan["title_weight"],
        passages=sum(reader.parts),
        words=len(reader.vocabulary),
        parts=tuple(reader.parts),
        negative=negative,
    )


def _put_in_place(work: Path, output: Path) -> None:
    """Renames the finished index, in the place of an older one, and drops what only the build
    needed."""
    old = output.with_name(output.name + ".old")
    if output.exists():
        shutil.rmtree(old, ignore_errors=True)
        output.rename(old)
    work.rename(output)
    shutil.rmtree(old, ignore_errors=True)
    for name in ("plan.json", "lock"):
        (output / name).unlink(missing_ok=True)
    for leftover in output.glob("part-*/build-*"):
        leftover.unlink()


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("index", "mempo.retrieval.build"),
        description="Builds an index for retriever=bm25s, once. A build that was stopped goes on.",
    )
    parser.add_argument("corpus", help="JSON lines with id and contents, or id, title, text, url")
    parser.add_argument("output", help="the index folder to make, for retriever.index")
    parser.add_argument(
        "--title-weight", type=int, default=1, help="as retriever.title_weight (default 1)"
    )
    parser.add_argument(
        "--part-words",
        type=int,
        default=PART_WORDS,
        help=f"words sorted at a time; fewer need less memory (default {PART_WORDS:,})",
    )
    given = parser.parse_args(arguments)
    if given.title_weight < 1 or given.part_words < 1:
        parser.error("--title-weight and --part-words must be at least 1")
    try:
        built = build_index(
            given.corpus, given.output, given.title_weight, given.part_words, show_progress=True
        )
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    print(f"index: {given.output}{'' if built else ' (was there, and fits its corpus)'}")


if __name__ == "__main__":
    main()
