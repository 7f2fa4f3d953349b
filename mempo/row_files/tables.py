"""Rows of ``.tsv`` and ``.csv`` files: the first line names the columns, cells may be quoted."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from mempo.row_files.endings import stem
from mempo.row_files.rows import DataError, Row, plain_line

_ESCAPED: Final = "surrogateescape"  # keeps bytes that are not UTF-8 until their row is known


def table_rows(
    lines: Iterable[tuple[int, bytes]], file: str, delimiter: str
) -> Iterator[Row | DataError]:
    """The rows of a table, from its numbered lines; a row that does not fit comes as the error
    that says why. A blank cell is ``None``. Blank lines at the end are none of its rows.

    Raises ``DataError`` for a first line that does not name the columns.
    """
    csv.field_size_limit(sys.maxsize)
    texts = (plain_line(line, number).decode("utf-8", _ESCAPED) + "\n" for number, line in lines)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    columns: list[str] = []
    blank: list[DataError] = []
    number = 0
    while True:
        place = f"{file}:{reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield _unreadable(place, error)
            continue
        if cells is None:
            break
        if not columns:
            columns = column_names(cells, place)
            continue
        number += 1
        if not cells:
            blank.append(DataError(f"{place}: the line is blank: remove it"))
            continue
        yield from blank
        blank.clear()
        try:
            yield Row(fields(columns, cells, place), place, f"{stem(file)}-{number}")
        except DataError as error:
            yield error


def table_row(line: bytes, columns: list[str], place: str, delimiter: str) -> dict[str, str | None]:
    """The fields of a row that stands on one line. Raises ``DataError``."""
    try:
        (cells,) = csv.reader([line.decode("utf-8", _ESCAPED)], delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise _unreadable(place, error) from None
    return fields(columns, cells, place)


def column_names(cells: list[str], place: str) -> list[str]:
    """The names in a table's first line. Raises ``DataError``."""
    columns = [cell.strip() for cell in cells]
    if not all(columns) or len(set(columns)) < len(columns):
        raise DataError(
            f"{place}: the first line must name the columns, each once; it has "
            f"{', '.join(columns)[:200] or 'none'}"
        )
    return columns


def fields(columns: list[str], cells: list[str], place: str) -> dict[str, str | None]:
    """A row's cells under the names of their columns. Raises ``DataError``."""
    if len(cells) != len(columns):
        raise DataError(
            f"{place}: the row has {len(cells)} cells, and the first line names {len(columns)} "
            f"columns: {', '.join(columns)[:200]}"
        )
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: the row is not UTF-8: save the file as UTF-8") from None
    return {name: cell if cell.strip() else None for name, cell in zip(columns, cells, strict=True)}


def _unreadable(place: str, error: csv.Error) -> DataError:
    return DataError(
        f"{place}: the row is no row of a table ({error}): a cell that begins with a quotation "
        'mark must end with one, and one inside it is written twice ("")'
    )
