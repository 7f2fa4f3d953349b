"""The configuration that a run keeps in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mempo.runtime.errors import MempoError


def read_config(path: Path) -> dict[str, Any]:
    """A ``.hydra/config.yaml``, not resolved: the run's folder is an interpolation that only Hydra
    knows. Empty where there is no such file; ``MempoError`` for one that cannot be read."""
    if not path.is_file():
        return {}
    try:
        found = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        cause = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise MempoError(
            f"{path}: the run's settings cannot be read ({cause}): repair or remove the file"
        ) from None
    if not isinstance(found, dict) or not found:
        raise MempoError(f"{path}: it holds no settings: repair or remove it")
    return {str(name): value for name, value in found.items()}


LISTS: Final = ("tools",)
"""Sections that are lists of sections."""


def check_section(config: dict[str, Any], name: str, path: Path) -> None:
    """Raises ``MempoError`` for a section, or a list of them, that is none."""
    if name not in LISTS:
        section(config, name, path)
    elif not isinstance(config[name], list):
        raise MempoError(f"{path}: {name} is no list: repair or remove the file")


def section(config: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """A section of it, empty where there is none. Raises ``MempoError`` for one that is none."""
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise MempoError(f"{path}: {name} is no section of settings: repair or remove the file")
    return found
