"""What a file's name says of its kind, and opening it: ``.gz`` stands for the file within."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO, Final, cast

PACKED: Final = ".gz"
JSON: Final = (".json", ".jsonl", ".ndjson")
TABLES: Final = {".tsv": "\t", ".csv": ","}
"""Kinds of tables, with what separates their cells."""

READ_ERRORS: Final = (OSError, EOFError, zlib.error)
"""What reading a file may raise; the last two where it is packed and cut off or damaged."""


def is_packed(file: str | PurePath) -> bool:
    """Whether the name ends with ``.gz``."""
    return PurePosixPath(file).suffix.lower() == PACKED


def ending(file: str | PurePath) -> str:
    """The ending in lower case, of what is inside a packed file: ``a.JSONL.gz`` has ``.jsonl``."""
    path = PurePosixPath(file)
    return PurePosixPath(path.stem if is_packed(path) else path).suffix.lower()


def stem(file: str | PurePath) -> str:
    """The file's name without its endings."""
    path = PurePosixPath(file)
    return PurePosixPath(path.stem).stem if is_packed(path) else path.stem


def open_plain(path: Path) -> BinaryIO:
    """The file's bytes, unpacked. Reading raises one of ``READ_ERRORS``."""
    return cast(BinaryIO, gzip.open(path)) if is_packed(path) else path.open("rb")
