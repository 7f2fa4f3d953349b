"""From what Hydra composed to ``Config``; every refusal names the setting and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mempo.config.aggregate import Config
from mempo.config.plausible import implausible
from mempo.runtime.errors import ConfigError


def load_config(mapping: Mapping[str, Any]) -> Config:
    """Turns a composed, resolved mapping into ``Config``. Raises ``ConfigError``."""
    try:
        config = TypeAdapter(Config).validate_python(dict(mapping))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail) for detail in error.errors())) from None
    if problems := list(implausible(mapping, config)):
        raise ConfigError("\n".join(problems))
    return config


def _explain(detail: Any) -> str:
    setting = ".".join(str(part) for part in detail["loc"]) or "configuration"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{setting}: there is no such setting; see conf/ for the names"
    if detail["type"] == "value_error":
        return (
            message
            if setting in message or not detail["loc"] or "." in message.split(" ")[0]
            else f"{setting}: {message}"
        )
    return f"{setting}={detail.get('input')!r}: {message}"


def require_path(path: str, setting: str) -> Path:
    """The path, or ``ConfigError`` that names the setting."""
    try:
        found = Path(path).expanduser()
        if found.exists():
            return found
        cause = "no such file or folder"
    except (OSError, RuntimeError) as error:  # a name too long, say, or nobody's home
        cause = getattr(error, "strerror", None) or str(error)
    raise ConfigError(f"{setting}={path}: {cause}")
