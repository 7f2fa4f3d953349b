"""JSON-lines files that a run appends to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mempo.runtime.errors import MempoError


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line per record, all in one write, and waits until the disk has them.

    Raises ``ValueError`` for a value that JSON has no word for, NaN and infinity included; the
    file is unchanged then.
    """
    data = "".join(_line(record) for record in records).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All records. A last line that was cut off while it was written is left out; any other broken
    line raises ``MempoError`` with file and line number."""
    records: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise MempoError(
                f"{path}, line {number}: not JSON ({error}); repair or remove that line"
            ) from None
    return records


def drop_from_epoch(path: Path, epoch: int) -> None:
    """Removes the lines of ``epoch`` and later ones, which a resumed run writes again.

    Nothing happens when there is no such file. The file is replaced in one step.
    """
    if not path.exists():
        return
    write_lines(path, [record for record in read_lines(path) if record["epoch"] < epoch])


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
    """Replaces a file by ``text`` in one step: a killed run leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
