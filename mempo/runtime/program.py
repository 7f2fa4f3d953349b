"""What the person typed to start this program, for hints that can be typed again."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Final

_VARIABLE: Final = "MEMPO_PROGRAM"
"""Kept in the environment, where the help text of ``conf/*.yaml`` reads it."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+%@-]+", re.ASCII)

_COMMANDS: Final = ("mempo ", "python -m mempo ")
"""How ``mempo SUBCOMMAND`` can begin."""


def started_as() -> str:
    """``mempo train``, ``python train.py`` or ``python -m mempo.command.train``."""
    return os.environ.get(_VARIABLE) or started_by_process()


def started_by_process() -> str:
    """The same without a subcommand, from the main module and ``sys.argv``."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is not None:
        return f"python -m {module.name.removesuffix('.__main__')}"
    path = Path(sys.argv[0])
    return f"python {shlex.quote(path.name)}" if path.suffix == ".py" else path.name


def remember_start(program: str) -> None:
    """``started_as`` returns ``program`` from now on, in processes started from here too."""
    os.environ[_VARIABLE] = program


def hydra_value(value: str) -> str:
    """``value`` as Hydra reads it on the command line: quoted unless it is plain, such as a path
    with a space, ``=``, ``,``, ``#``, a quote, or letters beyond ASCII."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)  # backslashes count before a quote only
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def command(subcommand: str, module: str) -> str:
    """How to start another program: ``mempo index`` where this one was started in that way,
    ``python -m mempo.retrieval.build`` otherwise."""
    for beginning in _COMMANDS:
        if started_as().startswith(beginning):
            return beginning + subcommand
    return f"python -m {module}"
