"""Whether a path is a model folder; told before seconds of imports."""

from __future__ import annotations

from pathlib import Path

from mempo.runtime.errors import ConfigError


def check_model_folder(path: str, setting: str) -> None:
    """Raises ``ConfigError`` unless ``path`` is a Hugging Face model folder or a hub name."""
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
    if looks_local and not (Path(path).expanduser() / "config.json").is_file():
        raise ConfigError(
            f"{setting}={path}: there is no config.json; give a Hugging Face model folder (a "
            "run's model/ folder is one) or a hub name like owner/name"
        )
