"""What the person typed to start this program, for hints that can be typed again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

_VARIABLE: Final = "MEMPO_PROGRAM"
"""Kept in the environment, where the help text of ``conf/*.yaml`` reads it."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+%@-]+", re.ASCII)


def started_as() -> str:
    """``mempo train``, ``python train.py`` or ``.venv/bin/python -m mempo.command.train``."""
    return os.environ.get(_VARIABLE) or started_by_process()


def started_by_process() -> str:
    """The same without a subcommand, from the main module, ``sys.argv`` and the interpreter."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is not None:
        return f"{_as_typed(sys.orig_argv[0])} -m {module.name.removesuffix('.__main__')}"
    path = Path(sys.argv[0])
    if path.suffix == ".py":
        return f"{_as_typed(sys.orig_argv[0])} {shlex.quote(path.name)}"
    return _as_typed(sys.argv[0])


def interpreter() -> str:
    """This Python, as it can be typed here."""
    return _as_typed(sys.executable)


def _as_typed(program: str) -> str:
    """The name alone where the shell finds the program by it, else its path from here."""
    path, name = Path(program).absolute(), Path(program).name
    found = shutil.which(name)
    if name == program or (found is not None and Path(found).absolute() == path):
        return name
    inside = path.is_relative_to(Path.cwd())
    return shlex.quote(str(path.relative_to(Path.cwd()) if inside else path))


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
    words = shlex.split(started_as())
    if len(words) > 1 and (Path(words[-2]).name == "mempo"):
        return shlex.join([*words[:-1], subcommand])
    python = words[0] if Path(words[0]).name.startswith("python") else "python"
    return f"{shlex.quote(python)} -m {module}"
