"""Files that a run writes and reads back. A disk or a hand may have damaged one:
what cannot be read is told with file and line, and stays as it is."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mempo.runtime.disk import writing
from mempo.runtime.errors import MempoError


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line per record, all in one write, and waits until the disk has them.

    Raises ``ValueError`` for a value that JSON has no word for, NaN and infinity included, and
    ``MempoError`` where the disk takes no more; the file is unchanged then.
    """
    data = "".join(_line(record) for record in records).encode()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                left = memoryview(data)
                while left:  # a disk that is nearly full takes a part, without an error
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All records. A last line that was cut off while it was written is told and left out; any
    other broken line raises ``MempoError`` with file and line number."""
    records: list[dict[str, Any]] = []
    lines = _read(path).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_object(line))
        except ValueError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                _tell(f"{path}, line {number}: cut off while it was written, and left out")
                break
            raise MempoError(
                f"{path}, line {number}: {error}; repair or remove that line"
            ) from None
    return records


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ``MempoError`` with the file's name."""
    data = _read(path)
    try:
        return _object(data)
    except ValueError as error:
        raise MempoError(f"{path}: {error}; repair or remove it") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MempoError(f"{path}: cannot be read ({error.strerror or error})") from None


def _object(data: bytes) -> dict[str, Any]:
    """One JSON object without NaN and infinity, which no run writes. Raises ``ValueError``."""
    try:
        found = json.loads(data)
        _check_finite(found, "")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})" if data.strip() else "it is empty") from None
    if not isinstance(found, dict):
        raise ValueError("a JSON object was expected")
    return found


def _check_finite(value: Any, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name.lstrip('.') or 'the value'}: {value} is not finite")
    inner = value.items() if isinstance(value, dict) else ()
    for key, one in enumerate(value) if isinstance(value, list) else inner:
        _check_finite(one, f"{name}.{key}")


@cache  # once for each file: the inspector reads a running run over and over
def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def drop_from_epoch(path: Path, epoch: int) -> None:
    """Removes the lines of ``epoch`` and later ones, which a resumed run writes again.

    Nothing happens when there is no such file. The file is replaced in one step.
    """
    if not path.exists():
        return
    write_lines(path, [one for one in lines_with_epochs(path) if one["epoch"] < epoch])


def lines_with_epochs(path: Path) -> list[dict[str, Any]]:
    """``read_lines``, each with the whole number of its epoch. Raises ``MempoError``."""
    records = read_lines(path)
    for number, record in enumerate(records, start=1):
        if type(record.get("epoch")) is not int:
            raise MempoError(
                f"{path}, line {number}: epoch is no whole number; repair or remove that line"
            )
    return records


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file by these records in one step: a killed run leaves the old file or the new
    one."""
    write_text("".join(_line(record) for record in records), path)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes one JSON file in one step: a killed run leaves the old file or the new one."""
    write_text(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Replaces a file by ``text`` in one step: a killed run, or a full disk (``MempoError``),
    leaves the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
