"""Settings that are paths. ``~`` in front of one is the home folder, which no shell expands behind
an equals sign."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator


def at_home(path: str) -> str:
    """The path with ``~`` as the home folder. Raises ``ValueError`` where there is none."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        user = path.partition("/")[0]
        raise ValueError(
            f"there is no home folder {user}: write the whole path, or set HOME"
        ) from None


_FROM_HOME: Final = AfterValidator(at_home)
SettingPath = Annotated[str, _FROM_HOME]
"""The type of a setting that is a path, or may be one."""


def path_settings(section: Any, prefix: str = "") -> Iterator[str]:
    """The settings of a section of ``Config`` that are paths or hold some, by their types."""
    for name, field in section.__pydantic_fields__.items():
        if _FROM_HOME in field.metadata or _holds_path(field.annotation):
            yield f"{prefix}{name}"
        for part in (field.annotation, *get_args(field.annotation)):
            if dataclasses.is_dataclass(part):
                yield from path_settings(part, f"{prefix}{name}.")


def _holds_path(hint: Any) -> bool:
    return hint == SettingPath or any(_holds_path(part) for part in get_args(hint))
