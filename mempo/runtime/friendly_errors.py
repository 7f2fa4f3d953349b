"""Programs that end with a sentence where a person can put the cause right."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig

from mempo.runtime.disk import disk_fault
from mempo.runtime.errors import ConfigError, MempoError

EXIT_USER_ERROR = 2
"""Exit code for causes that the person can put right."""


_THERE_BEFORE: set[Path] = set()


def readable_output() -> None:
    """Lets the terminal's encoding decide how a character looks, never whether the program goes on:
    under ``LANG=C`` a dash is written as ``\\u2013``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def remember_folder(folder: Path) -> None:
    """Called before Hydra makes a run's folder: one that is there already is never removed."""
    if folder.exists():
        _THERE_BEFORE.add(folder.resolve())


@contextmanager
def friendly_errors() -> Iterator[None]:
    """Ends the program with a short message and exit code 2 for errors a person can put right.

    Works as a ``with`` block and as a decorator (``@friendly_errors()``, under ``@hydra.main``).
    Those are ``MempoError``, ``ConfigError`` and what the disk refuses; everything else passes
    through with its traceback.
    """
    readable_output()
    try:
        yield
    except (MempoError, ConfigError) as error:
        end_with(str(error))
    except OSError as error:
        if (sentence := disk_fault(error)) is None:
            raise
        end_with(sentence)


def remove_unused_run_folder() -> None:
    """Removes the run's folder when nothing but its configuration is in it: after a dry run or a
    refused command. One that was there before stays. Does nothing outside of ``hydra.main``."""
    if not HydraConfig.initialized():
        return
    folder = Path(HydraConfig.get().runtime.output_dir)
    if folder.resolve() in _THERE_BEFORE:
        return
    if folder.is_dir() and {path.name for path in folder.iterdir()} <= {".hydra"}:
        shutil.rmtree(folder)
        with suppress(OSError):  # of the day's folder, when it holds other runs, and of all runs'
            folder.parent.rmdir()
            if folder.parents[1].name == "runs":
                folder.parents[1].rmdir()


def end_with(message: str) -> NoReturn:
    """Prints the message as an error and ends the program with ``EXIT_USER_ERROR``."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    remove_unused_run_folder()
    raise SystemExit(EXIT_USER_ERROR) from None
