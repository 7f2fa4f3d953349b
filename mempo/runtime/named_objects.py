"""Classes and functions that a setting names, as ``module.name``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from mempo.runtime.errors import ConfigError


def find_modules_in(folder: Path) -> None:
    """``named_object`` looks into this folder too, behind all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def named_object(name: str, setting: str) -> Any:
    """What ``name`` stands for, as Hydra reads a ``_target_``: something in a module, or in a class
    of it. Modules are found in the current folder too.

    Raises ``ConfigError`` that names ``setting`` when there is no such module, or nothing of that
    name in it. What the module itself raises while it is imported comes through.
    """
    module_name, _, attribute = name.rpartition(".")
    if not all(part.isidentifier() for part in name.split(".")) or not module_name:
        meant = name if name.isidentifier() else "name"
        raise ConfigError(f"{setting}={name}: write it as module.name, as my_module.{meant}")
    here = Path.cwd()
    find_modules_in(here)  # last: a file of the current folder hides no installed module
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        parent, _, inner = module_name.rpartition(".")
        module = getattr(sys.modules.get(parent), inner, None)
        if not isinstance(module, type):
            raise ConfigError(
                f"{setting}={name}: there is no module {error.name} in {here} or among the "
                "installed ones"
            ) from None
    if not hasattr(module, attribute):
        if hasattr(module, "__path__") and importlib.util.find_spec(name) is not None:
            raise ConfigError(f"{setting}={name} is a module: add the name of what it holds")
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        meant = f"; did you mean {module_name}.{close[0]}?" if close else ""
        raise ConfigError(f"{setting}={name}: {module_name} has no {attribute}{meant}")
    return getattr(module, attribute)
