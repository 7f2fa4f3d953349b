"""Builds an index on disk, once: ``python -m mempo.retrieval.build CORPUS OUTPUT``.

The corpus is read in one pass. Its words are numbered as they come; whenever ``part_words`` words
have been read they are sorted into a part and written, so that memory holds one part and the
vocabulary, whatever the corpus. Scores need the frequencies of the whole corpus: they are computed
part by part at the end, with the formula and parameters of ``rank_bm25.BM25Okapi``. The matrices
have the form of the package bm25s; its own build is not used because it holds the whole corpus as
Python lists.

Everything is written to OUTPUT.building, which takes the place of OUTPUT at the end: an older index
stays until then. A build that was stopped or killed goes on after its last finished part, or starts
over when the corpus has changed; one that failed leaves nothing behind.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mempo.retrieval import index_files
from mempo.retrieval.corpus import documents_of, has_lines, tell, write_passages
from mempo.retrieval.corpus_reader import MEGABYTE, CorpusReader
from mempo.retrieval.index_files import MOST_TITLE_WEIGHT, IndexFileError, Manifest, Piece
from mempo.retrieval.index_swap import PLAN, put_in_place, recover, tidy, working_folder
from mempo.retrieval.part_files import write_scores, write_tables
from mempo.retrieval.words import TOKENIZER
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.runtime.errors import MempoError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command
from mempo.runtime.progress import progress_bar

PART_WORDS: Final = 50_000_000
"""Words of a part: about 500,000 passages of 100 words, sorted within about 2 GB of memory."""


def build_index(
    corpus: str | Path,
    output: str | Path,
    title_weight: int = 1,
    part_words: int = PART_WORDS,
    show_progress: bool = False,
    skip_bad_rows: bool = False,
) -> bool:
    """Builds the index of a corpus (specification section 11); ``False`` when
    ``output`` already holds it.

    Words of titles count ``title_weight`` times. ``skip_bad_rows`` leaves malformed rows out and
    prints their number; what else was guessed is printed too. Raises ``DataError`` for a faulty
    corpus, with file and line, and ``IndexFileError`` when ``output`` is something else
    than an index, or another build of it is running.
    """
    corpus, output = Path(corpus), Path(output)
    try:
        recover(output)
        if _is_current(corpus, output, title_weight):
            tidy(output)
            return False
        plan = _plan(corpus, title_weight, part_words, skip_bad_rows)
        with _work_folder(output) as work:
            _build(plan, corpus, work, show_progress)
            put_in_place(work, output)
    except OSError as error:
        raise _unwritable(error, corpus, output) from error
    except MemoryError:
        raise IndexFileError(
            f"{output}: there is not enough memory for its build: give fewer --part-words than "
            f"{part_words:,}"
        ) from None
    return True


def _build(plan: dict[str, int], corpus: Path, work: Path, show_progress: bool) -> None:
    """The whole index in ``work``, after what an earlier build of the same ``plan`` left there."""
    title_weight, part_words = plan["title_weight"], plan["part_words"]
    skip_bad_rows = bool(plan["skip_bad_rows"])
    lines = corpus if has_lines(corpus) else work / index_files.PASSAGES
    if _plan_of(work) != plan:
        _start_over(work, plan)
    try:
        reader = CorpusReader(corpus, lines, work, title_weight, part_words, skip_bad_rows)
    except (OSError, ValueError, KeyError, TypeError):  # files that a crash of the machine damaged
        _start_over(work, plan)
        reader = CorpusReader(corpus, lines, work, title_weight, part_words, skip_bad_rows)
    if not lines.exists():
        told = Told()
        write_passages(documents_of(corpus, skip_bad_rows, told), lines)
        tell(told, None)
    with progress_bar(
        "reading passages (MB)", plan["bytes"] // MEGABYTE, enabled=show_progress
    ) as bar:
        reader.read(bar)
    if lines == corpus:  # of a copy it was told when that was made
        tell(reader.counted, None)
    manifest = _finish(work, plan, reader, show_progress)
    if lines != corpus:
        whole = Piece(0, plan["bytes"], index_files.digest(corpus, 0, plan["bytes"]))
        manifest = replace(manifest, pieces=(whole,), copied=True)
    if _plan(corpus, title_weight, part_words, skip_bad_rows) != plan:
        raise IndexFileError(f"{corpus} changed while its index was built: build it again")
    index_files.write_manifest(work, manifest)


def _unwritable(error: OSError, corpus: Path, output: Path) -> MempoError:
    """The sentence for a fault of the file system. A write that found no room has no file name."""
    cause = error.strerror or str(error)
    if error.filename is not None and Path(error.filename) == corpus:
        return DataError(f"{corpus}: cannot be read ({cause})")
    return IndexFileError(
        f"{output} cannot be written ({cause}): make room there (an index takes about as much as "
        "its corpus), or name a folder on another disk"
    )


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


def _plan(corpus: Path, title_weight: int, part_words: int, skip_bad_rows: bool) -> dict[str, int]:
    try:
        state = corpus.stat()
        if not corpus.is_file():
            raise DataError(f"{corpus}: it is no file: give one of JSON lines")
        with corpus.open("rb"):
            pass
    except OSError as error:
        raise DataError(f"{corpus}: cannot be read ({error.strerror or error})") from error
    return {
        "format": index_files.FORMAT,
        "tokenizer": TOKENIZER,
        "bytes": state.st_size,
        "modified_ns": state.st_mtime_ns,
        "title_weight": title_weight,
        "part_words": part_words,
        "skip_bad_rows": int(skip_bad_rows),
    }


def _plan_of(work: Path) -> Any:
    """What an earlier build was about, ``None`` when there was none."""
    try:
        return json.loads((work / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _start_over(work: Path, plan: dict[str, int]) -> None:
    """Empties ``work`` but for its lock, and notes what is built there now."""
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()
    (work / PLAN).write_text(json.dumps(plan), encoding="utf-8")


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """The folder to build in, for one build at a time: the lock goes with the process that holds
    it. A build that failed leaves nothing there, nor folders that were made for it; one that was
    interrupted leaves its parts, to go on with."""
    work = working_folder(output)
    made = [folder for folder in work.parents if not folder.exists()]
    try:
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                made = []
                raise IndexFileError(f"another build is writing to {work}: wait for it") from None
            try:
                yield work
            except Exception:
                shutil.rmtree(work, ignore_errors=True)
                raise
    except Exception:
        for folder in made:
            with suppress(OSError):  # somebody put something there
                folder.rmdir()
        raise


def _finish(
    work: Path, plan: dict[str, int], reader: CorpusReader, show_progress: bool
) -> Manifest:
    """Scores and tables, from parts that are complete."""
    write_tables(work, reader.lines, reader.parts, list(reader.vocabulary))
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


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("index", "mempo.retrieval.build"),
        description="Builds an index for retriever=bm25s, once. A build that was stopped goes on.",
    )
    parser.add_argument(
        "corpus",
        help="rows with id and contents, or id, title, text, url, in any form of data.corpus",
    )
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
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="leave malformed rows out and count them"
    )
    given = parser.parse_args(arguments)
    if not 1 <= given.title_weight <= MOST_TITLE_WEIGHT:
        parser.error(f"--title-weight must be from 1 to {MOST_TITLE_WEIGHT}")
    if given.part_words < 1:
        parser.error("--part-words must be at least 1")
    for name in ("corpus", "output"):
        if not getattr(given, name).strip():
            parser.error(f"{name} is empty: give a path")
    try:
        built = build_index(
            given.corpus,
            given.output,
            given.title_weight,
            given.part_words,
            show_progress=True,
            skip_bad_rows=given.skip_bad_rows,
        )
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None
    print(f"index: {given.output}{'' if built else ' (was there, and fits its corpus)'}")


if __name__ == "__main__":
    main()
