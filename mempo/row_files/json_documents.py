"""Rows of a JSON document: the elements of one list, each with the line that it begins on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from mempo.row_files.endings import stem
from mempo.row_files.rows import DataError, Row, require_text, seen

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_WRAPPERS: Final = ("Data", "data")
_BOM: Final = "\ufeff"


def begins_document(line: bytes, may_be_document: bool) -> bool:
    """Whether the first line begins one JSON value over the whole file."""
    if line.startswith(b"["):
        return True
    if not may_be_document or not line.startswith(b"{"):
        return False
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return True
    return any(isinstance(row.get(name), list) for name in _WRAPPERS)


def document_rows(document: bytes, file: str) -> Iterator[Row | DataError]:
    """The rows of a JSON document: a list of them, or an object that holds it in ``Data``. Raises
    ``DataError`` for one that is not JSON, or of another shape."""
    try:
        text = document.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 ({error}): save the file as UTF-8") from None
    start = _skip(text, 0)
    if text.startswith("[", start):
        yield from _list_rows(text, start, file)
        return
    name = stem(file)
    whole, _ = _decode(text, start, file)
    rows = next((whole[key] for key in _WRAPPERS if isinstance(whole.get(key), list)), None)
    if rows is None:
        raise DataError(
            f"{file}: one JSON object with the keys {', '.join(whole) or '(none)'}: give one "
            f'object per line, a list of objects, or that list in "{_WRAPPERS[0]}"'
        )
    for number, fields in enumerate(rows, start=1):
        yield _row(fields, f"{file}, row {number}", f"{name}-{number}")


def _list_rows(text: str, start: int, file: str) -> Iterator[Row | DataError]:
    """The elements of a JSON list, each with the line it begins on."""
    name = stem(file)
    position = _skip(text, start + 1)
    line, counted, number = 1, 0, 0
    closed = text.startswith("]", position)
    while not closed:
        line += text.count("\n", counted, position)
        counted = position
        number += 1
        fields, position = _decode(text, position, file)
        yield _row(fields, f"{file}:{line}, row {number}", f"{name}-{number}")
        position = _skip(text, position)
        closed = text.startswith("]", position)
        if not closed:
            if not text.startswith(",", position):
                raise DataError(
                    f"{file}:{text.count(chr(10), 0, position) + 1}: not JSON: a comma or ] must "
                    f"follow row {number}"
                )
            position = _skip(text, position + 1)


def _row(fields: Any, place: str, default_id: str) -> Row | DataError:
    if isinstance(fields, dict):
        try:
            require_text(fields, place)
        except DataError as error:
            return error
        return Row(fields, place, default_id)
    return DataError(f"{place}: the row is no JSON object, it is {seen(fields)}")


def _decode(text: str, position: int, file: str) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise DataError(f"{file}: not usable JSON: it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{file}: not usable JSON ({error})") from None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()
