"""Faults of the disk as sentences: a folder that nobody may write to, no room, a quota. A folder is
tried before hours of work go into it."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mempo.runtime.errors import ConfigError, MempoError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def require_writable(folder: str | Path, setting: str) -> None:
    """Raises ``ConfigError`` where nothing can be written into a folder, or into the one that it
    would be made in. Makes nothing that stays."""
    place = Path(folder).absolute()
    while not os.path.lexists(place):
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        remedy = "make room there" if error.errno in _FULL else "see to its permissions"
        raise ConfigError(
            f"{setting}={folder} cannot be written to ({error.strerror or error}): {remedy}, or "
            f"choose another folder with {setting}="
        ) from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around the writing of ``path``: raises ``MempoError`` with the path and the remedy where the
    disk does not take it. Other errors pass through."""
    try:
        yield
    except Exception as error:
        if (sentence := disk_fault(error, path)) is None:
            raise
        raise MempoError(sentence) from error


def disk_fault(error: BaseException, path: Path | None = None) -> str | None:
    """The sentence for an error that the disk caused, ``None`` for every other one. Libraries
    written in other languages say the system's number in their message."""
    number, named = _number(error)
    if number not in (*_FULL, *_CLOSED):
        return None
    place = path or named or "a file"
    remedy = (
        "make room on its disk, or take a folder on another one"
        if number in _FULL
        else "see to its permissions, or take another folder"
    )
    return (
        f"{place}: cannot be written ({os.strerror(number)}): {remedy}. What stood there before "
        "is whole"
    )


def _number(error: BaseException | None) -> tuple[int, str | None]:
    """The system's number of the first error in the chain that has one, and the file it names."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno, error.filename
        if found := re.search(r"os error (\d+)", str(error)):
            return int(found[1]), None
        error = error.__cause__ or error.__context__
    return 0, None
