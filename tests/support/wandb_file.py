"""Reads what wandb wrote offline: the history of a run and its tables.

wandb keeps a run's records as protocol buffers in a log of LevelDB's format: blocks of 32 KiB with
records that may go on in the next block. wandb 0.31 has no reader of its own in Python.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

BLOCK = 32768
RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, kind
FILE_HEADER = struct.Struct("<4sHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def raw_records(data: bytes) -> Iterator[bytes]:
    name, magic, _ = FILE_HEADER.unpack_from(data)
    assert (name, magic) == (b":W&B", 0xBEE1)
    position, parts = FILE_HEADER.size, b""
    while position + RECORD_HEADER.size <= len(data):
        left = BLOCK - position % BLOCK
        if left < RECORD_HEADER.size:
            position += left
            continue
        _, length, kind = RECORD_HEADER.unpack_from(data, position)
        position += RECORD_HEADER.size
        parts += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def read_history(run: Path) -> list[dict[str, Any]]:
    """The entries that were logged, in order; ``run`` is the folder ``offline-run-…`` of a run that
    has ended. wandb's own process may write the end a moment after that."""
    deadline = time.monotonic() + 30
    while not (records := _records(run)) or records[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < deadline, "wandb did not write the end of the run"
        time.sleep(0.1)
    return [
        _entry(record.history.item)
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def _records(run: Path) -> list[Any]:
    # Its messages are made while the module loads, which no type checker sees.
    record: Any = import_module("wandb.proto.wandb_internal_pb2").Record
    (file,) = run.glob("run-*.wandb")
    return [record.FromString(raw) for raw in raw_records(file.read_bytes())]


def _entry(items: Any) -> dict[str, Any]:
    """Values of one name, such as the bins of a histogram, stand in several items."""
    entry: dict[str, Any] = {}
    for item in items:
        *outer, last = [item.key] if item.key else item.nested_key
        place = entry
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)
    return entry


def read_table(run: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """The columns and rows of a table, from its entry in the history."""
    table: dict[str, Any] = json.loads((run / "files" / entry["path"]).read_text())
    return table
