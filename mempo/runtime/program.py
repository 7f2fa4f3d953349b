"""What the person typed to start this program, for hints that can be typed again."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

_VARIABLE = "MEMPO_PROGRAM"
"""Set by ``mempo SUBCOMMAND``; ``conf/*.yaml`` reads it for the help text."""


def started_as() -> str:
    """``mempo train``, ``python train.py`` or ``python -m mempo.command.train``."""
    return os.environ.get(_VARIABLE) or _without_command()


def remember_start(program: str | None = None) -> None:
    """Keeps ``program``, or what the process shows of itself, for ``started_as`` here and in the
    configuration's help."""
    os.environ[_VARIABLE] = program or started_as()


def command(subcommand: str, module: str) -> str:
    """How to start another program: ``mempo index`` where this one was started in that way,
    ``python -m mempo.retrieval.build`` otherwise."""
    through_command = started_as().split()[0] == "mempo"
    return f"mempo {subcommand}" if through_command else f"python -m {module}"


def _without_command() -> str:
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if module is not None:
        return f"python -m {module.name.removesuffix('.__main__')}"
    path = Path(sys.argv[0])
    return f"python {shlex.quote(path.name)}" if path.suffix == ".py" else path.name or "python"
