"""Putting a finished index in its place, so that a kill at any moment leaves a whole one there.

OUTPUT             the index that searches use
OUTPUT.building    where the next one is built; after the exchange, the one before
OUTPUT.old         the one before, for a moment, where folders cannot be exchanged in one step
"""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from mempo.retrieval.index_files import MANIFEST

PLAN: Final = "plan.json"
"""What the build in a folder is about; it goes when the index is in its place."""

_AT_WORKING_DIRECTORY: Final = -100
_RENAME_EXCHANGE: Final = 2


def working_folder(output: Path) -> Path:
    """Where the index of ``output`` is built: beside it, on the same file system."""
    return output.with_name(output.name + ".building")


def put_in_place(work: Path, output: Path) -> None:
    """Puts the finished index in the place of an older one, and drops that and whatever only the
    build needed. Raises ``OSError``."""
    if not output.exists():
        work.rename(output)
    elif not _exchange(work, output):
        output.rename(_replaced(output))
        work.rename(output)
    tidy(output)


def recover(output: Path) -> None:
    """Puts back an index that a build was replacing when it was killed. Raises ``OSError``."""
    if not output.exists() and (_replaced(output) / MANIFEST).is_file():
        _replaced(output).rename(output)


def tidy(output: Path) -> None:
    """Removes what a build, killed after its last step, left beside and in its index."""
    for before in (working_folder(output), _replaced(output)):
        if (before / MANIFEST).is_file() and not (before / PLAN).exists():
            with suppress(OSError):
                _remove(before)
        with suppress(OSError):  # it is not there, or not empty
            before.rmdir()
    for leftover in (output / PLAN, output / "lock", *output.glob("part-*/build-*")):
        with suppress(OSError):  # they do no harm
            leftover.unlink()


def _remove(index: Path) -> None:
    """Removes an index, its manifest last: a kill on the way leaves what ``tidy`` knows again."""
    for entry in index.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != MANIFEST:
            entry.unlink(missing_ok=True)
    (index / MANIFEST).unlink(missing_ok=True)


def _replaced(output: Path) -> Path:
    return output.with_name(output.name + ".replaced")


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step; ``False`` where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    here = _AT_WORKING_DIRECTORY
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(here, names[0], here, names[1], _RENAME_EXCHANGE) == 0)
