"""Reading the rows of JSON-lines data files so that every fault is named with file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mempo.runtime.errors import MempoError


class DataError(MempoError, ValueError):
    """A data file that cannot be used; the message names file, line and remedy."""


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, counted from 1, without their line ends.

    Raises ``DataError`` when the file is missing, cannot be read, or holds nothing.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                plain = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                yield number, plain.rstrip(b"\r\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if number == 0:
        raise DataError(f"{path}: the file is empty: give one JSON object per line")


def parse_object(line: bytes, place: str) -> dict[str, Any]:
    """One line as a JSON object. Raises ``DataError`` with ``place`` (file and line) in front."""
    if not line.strip():
        raise DataError(f"{place}: the line is blank: remove it")
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: the line is not UTF-8 ({error}): save the file as UTF-8"
        ) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"{place}: the line is not JSON ({error}): give one JSON object per line"
        ) from None
    if not isinstance(value, dict):
        raise DataError(f"{place}: the line is no JSON object: write {{...}} on every line")
    if b"\\u" in line:
        require_text(value, place)
    return value


def require_text(fields: Mapping[str, Any], place: str) -> None:
    """Raises ``DataError`` with ``place`` when a field holds half a character: JSON can write
    lone surrogates (``\\ud83d``), which no tokenizer can read and no file can hold."""
    for name, value in fields.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = json.dumps(error.object[error.start])
            raise DataError(
                f"{place}: the field {json.dumps(name)} holds {half[1:-1]}, half a character "
                "(a lone surrogate): write the whole character, or remove it"
            ) from None


def required_text(row: Mapping[str, Any], name: str, place: str) -> str:
    """A field that must be there and hold a text that is not blank. Raises ``DataError``."""
    if row.get(name) is None:
        raise DataError(f'{place}: the field "{name}" is missing: add it')
    value = row[name]
    if not isinstance(value, str):
        raise DataError(f'{place}: the field "{name}" must be a text, it is {value!r}')
    if not value.strip():
        raise DataError(f'{place}: the field "{name}" is blank: fill it in or remove the line')
    return value


def identifier(row: Mapping[str, Any], place: str) -> str | None:
    """The field ``id`` as text (whole numbers count), ``None`` where there is none."""
    value = row.get("id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise DataError(
            f'{place}: the field "id" must be a text or a whole number, it is {value!r}'
        )
    return str(value)
