"""Rows of data files, read so that every fault is named with file, line, field and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mempo.row_files.endings import READ_ERRORS, open_plain, stem
from mempo.runtime.errors import MempoError

_SHOWN_FIELDS: Final = 20
_SHOWN_CHARACTERS: Final = 60
_BOM: Final = b"\xef\xbb\xbf"


class DataError(MempoError, ValueError):
    """A data file that cannot be used; the message names file, line and remedy."""


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, counted from 1, without their line ends.

    Raises ``DataError`` when the file is missing, cannot be read, or holds nothing.
    """
    number = 0
    try:
        with open_plain(path) as file:
            for number, line in enumerate(file, start=1):
                yield number, plain_line(line, number)
    except READ_ERRORS as error:
        cause = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({cause})") from error
    if number == 0:
        raise DataError(f"{path}: the file is empty: give one JSON object per line")


def plain_line(line: bytes, number: int) -> bytes:
    """Line ``number`` of a file (from 1) without its line end, and without a byte-order mark."""
    plain = line.removeprefix(_BOM) if number == 1 else line
    return plain.rstrip(b"\r\n")


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
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, too
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


@dataclass(frozen=True)
class Row:
    """One row of a data file, with accessors whose faults name file, line, field and what was seen.

    ``place`` is the file with line or row number; ``default_id`` names a row without an id;
    ``named`` is what the faults of later rows of the file call this one.
    """

    fields: Mapping[str, Any]
    place: str
    default_id: str = ""
    named: str = field(default="", compare=False)

    def fault(self, problem: str) -> DataError:
        """The error to raise: the place, what is wrong, and the fields that the row has."""
        names = list(self.fields)
        shown = ", ".join(names[:_SHOWN_FIELDS]) or "none"
        more = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
        return DataError(f"{self.place}: {problem} (fields of this row: {shown}{more})")

    def first(self, *names: str) -> str | None:
        """The first of these fields that is there and not null."""
        for name in names:
            if self.fields.get(name) is not None:
                return name
        return None

    def text(self, *names: str) -> str:
        """The first of these fields that is there, stripped. Raises ``DataError`` when none is, or
        when it is no text, or blank."""
        name = self.first(*names)
        if name is None:
            wanted = " or ".join(f'"{one}"' for one in names)
            raise self.fault(f"the field {wanted} is missing")
        value = self.fields[name]
        if not isinstance(value, str):
            raise self.fault(f'the field "{name}" must be a text, it is {seen(value)}')
        if not value.strip():
            raise self.fault(f'the field "{name}" is blank')
        return value.strip()

    def optional_text(self, *names: str) -> str:
        """Like ``text``, but ``""`` where no field is there or the first one is blank."""
        name = self.first(*names)
        if name is None or self.fields[name] == "":
            return ""
        return self.text(name)

    def identifier(self, *names: str) -> str:
        """The first of these fields that is there (a text or a whole number), else
        ``default_id``. Raises ``DataError``."""
        name = self.first(*names)
        if name is None:
            return self.default_id
        value = self.fields[name]
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
            raise self.fault(
                f'the field "{name}" must be a text or a whole number, it is {seen(value)}'
            )
        return str(value).strip()


class UniqueIds:
    """The ids of the rows read so far. ``thing`` is what errors call what has one."""

    def __init__(self, thing: str) -> None:
        self._thing = thing
        self._rows: dict[str, str] = {}

    def claim(self, key: str, row: Row) -> None:
        """Raises ``DataError`` when an earlier row has this id."""
        if key in self._rows:
            raise DataError(
                f'{row.place}: the id "{key}" stands already {self._rows[key]}: give every '
                f"{self._thing} its own"
            )
        self._rows[key] = row.named or f"at {row.place}"


def line_rows(path: Path) -> Iterator[Row | DataError]:
    """The rows of a JSON-lines file as ``object_rows``. Raises ``DataError`` as
    ``numbered_lines``."""
    return object_rows(numbered_lines(path), str(path))


def object_rows(lines: Iterable[tuple[int, bytes]], file: str) -> Iterator[Row | DataError]:
    """The rows of numbered lines of JSON; a line that is no JSON object comes as the error that
    says why, and blank lines at the end are none. A row without an id is named after file and
    line."""
    name, blank = stem(file), list[DataError]()
    for number, line in lines:
        place = f"{file}:{number}"
        try:
            fields = parse_object(plain_line(line, number), place)
        except DataError as error:
            if not line.strip():
                blank.append(error)
                continue
            yield from blank
            blank.clear()
            yield error
            continue
        if blank:
            yield from blank
            blank.clear()
        yield Row(fields, place, f"{name}-{number}", f"on line {number}")


def seen(value: Any) -> str:
    """A value as error messages show it: its kind, and its keys or its beginning."""
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return f"a list of {len(value)}" + (f" that begins with {seen(value[0])}" if value else "")
    written = repr(value)
    short = written if len(written) <= _SHOWN_CHARACTERS else f"{written[:_SHOWN_CHARACTERS]}…"
    return f"{type(value).__name__} {short}" if value is not None else "null"
