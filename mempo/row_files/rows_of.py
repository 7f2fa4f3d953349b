"""The rows of one file of JSON or of a table, by its name's ending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mempo.row_files.endings import TABLES, ending
from mempo.row_files.json_documents import begins_document, document_rows
from mempo.row_files.rows import DataError, Row, numbered_lines, object_rows, plain_line
from mempo.row_files.tables import table_rows


def rows_of_lines(
    lines: Callable[[], Iterable[tuple[int, bytes]]], file: str
) -> Iterator[Row | DataError]:
    """The rows of ``file``, whose numbered lines ``lines`` gives from the first at each call: a
    table, one JSON object a line, or a JSON document. A row that cannot be parsed comes as the
    error that says why. Raises ``DataError`` for a file that cannot be read at all."""
    kind = ending(file)
    if kind in TABLES:
        yield from table_rows(lines(), file, TABLES[kind])
        return
    first = next((plain_line(line, number) for number, line in lines() if line.strip()), b"")
    if begins_document(first.lstrip(), kind == ".json"):
        yield from document_rows(b"\n".join(line.rstrip(b"\r\n") for _, line in lines()), file)
    else:
        yield from object_rows(lines(), file)


def file_rows(path: Path) -> Iterator[Row | DataError]:
    """The rows of a file on this machine, as ``rows_of_lines``. Raises ``DataError`` where it is
    missing, cannot be read or holds nothing."""
    yield from rows_of_lines(lambda: numbered_lines(path), str(path))
