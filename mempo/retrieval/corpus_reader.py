"""The pass over the corpus that writes an index's parts, from where an earlier build stopped."""

from __future__ import annotations

import shutil
from array import array
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mempo.retrieval import index_files
from mempo.retrieval.base import Document
from mempo.retrieval.corpus import LEFT_OUT, document_of_line, first_passage, line_number
from mempo.retrieval.index_files import Piece, part_folder
from mempo.retrieval.part_files import PartWriter, read_part_state
from mempo.retrieval.words import words
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.runtime.progress import ProgressBar

MEGABYTE: Final = 1_000_000
"""Bytes between two moves of the progress bar."""


class CorpusReader:
    """Reads the corpus from where an earlier build stopped, and writes parts. ``lines`` is the
    corpus, or its copy where that has no lines."""

    def __init__(
        self,
        corpus: Path,
        lines: Path,
        work: Path,
        title_weight: int,
        part_words: int,
        skip_bad_rows: bool = False,
    ) -> None:
        self.corpus, self.lines, self.work = corpus, lines, work
        self.skip_bad_rows = skip_bad_rows
        self.counted = Told()
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
        """Reads on to the end of the corpus. ``counted`` then holds what was guessed, and left out
        with ``skip_bad_rows``, in what this build read."""
        start = self.pieces[-1].end if self.pieces else first_passage(self.lines)
        passages, told = sum(self.parts), start // MEGABYTE
        bar.advance(told)
        writer = self._writer(start)
        left_out = 0
        if self.skip_bad_rows and self.parts:
            header = first_passage(self.lines) > 0
            left_out = line_number(self.lines, start) - 1 - header - passages
        errors: list[DataError] = []  # of blank lines, too: those at the end are none
        with self.lines.open("rb") as file:
            file.seek(start)
            position = start
            for line in file:
                if not line.strip() and not self.skip_bad_rows:
                    self._only_blank_lines_follow(file, passages + 1)
                    break
                try:
                    document = document_of_line(
                        line, self.corpus, passages + 1, self.counted, left_out
                    )
                except DataError as error:
                    if not self.skip_bad_rows:
                        raise
                    left_out += 1
                    position += len(line)
                    errors.append(error)
                    if line.strip():
                        self._count(errors)
                    continue
                self._count(errors)
                passages += 1
                writer.add(document, self._numbers(document), position)
                position += len(line)
                if position // MEGABYTE > told:
                    bar.advance(position // MEGABYTE - told)
                    told = position // MEGABYTE
                if writer.words >= self.part_words:
                    self._write(writer, position)
                    writer = self._writer(position)
        if writer.passages:
            self._write(writer, position)
        if not self.parts:
            raise DataError(f"{self.corpus}: the file is empty: give one JSON object per line")

    def _count(self, errors: list[DataError]) -> None:
        for error in errors:
            self.counted.add(LEFT_OUT, str(error))
        errors.clear()

    def _only_blank_lines_follow(self, file: Iterable[bytes], number: int) -> None:
        """Raises ``DataError`` for a blank line ``number`` that others follow."""
        if any(line.strip() for line in file):
            raise DataError(f"{self.corpus}:{number}: the line is blank: remove it")

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
        piece = Piece(writer.start, end, index_files.digest(self.lines, writer.start, end))
        writer.write(temporary, piece, list(self.vocabulary)[writer.first_word :])
        temporary.rename(folder)
        self.pieces.append(piece)
        self.parts.append(writer.passages)
