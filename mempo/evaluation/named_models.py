"""Which models ``evaluate.py`` is asked for, and where they are; told before seconds of imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mempo.runtime.errors import ConfigError
from mempo.runtime.run_folder import CONFIG_FILE, MODEL_FOLDER

_WEIGHTS: Final = ("*.safetensors", "*.bin")

Models = str | Sequence[str] | Mapping[str, str] | None
"""What ``evaluation.models`` may say."""


def named_models(model_path: str | None, models: Models) -> tuple[str, dict[str, str]]:
    """The setting that names the models, and what it says by name.

    Raises ``ConfigError`` when neither ``evaluation.model_path`` nor ``evaluation.models`` does.
    """
    if models is None:
        if model_path is None:
            raise ConfigError(
                "evaluation.model_path is empty: give a run folder, a Hugging Face folder or a hub "
                "name (evaluation.models takes several)"
            )
        return "evaluation.model_path", {model_path: model_path}
    if isinstance(models, Mapping):
        return "evaluation.models", dict(models)
    paths = (models,) if isinstance(models, str) else models
    return "evaluation.models", {path: path for path in paths}


def model_folder(path: str, setting: str, served: bool = False) -> str:
    """A run folder stands for its ``model/``; anything else is a model folder or hub name.

    Where it is ``served`` (``engine=openai``) a folder needs no weights, and a name may be any that
    the server knows. Raises ``ConfigError``, which names ``setting``, when a folder holds no model.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if served and not path.startswith((".", "~", "/")):
            return path
        local = path.startswith((".", "~")) or path.count("/") != 1 or folder.parent.is_dir()
        if not local:
            return path
        raise ConfigError(f"{setting}={path}: no such folder")
    for candidate in (folder / MODEL_FOLDER, folder):
        if (candidate / "config.json").is_file():
            if not served and not any(found for kind in _WEIGHTS for found in candidate.glob(kind)):
                raise ConfigError(
                    f"{setting}={path}: {candidate} holds a config.json but no weights "
                    f"({', '.join(_WEIGHTS)}): give a complete model folder"
                )
            return str(candidate)
    raise ConfigError(
        f"{setting}={path}: neither it nor its model/ holds a config.json; give a "
        "finished run's folder or a Hugging Face model folder"
    )


def run_of(folder: str) -> Path | None:
    """The run that a model folder is of, where it is a run's ``model/`` and the run's settings are
    there."""
    model = Path(folder)
    run = model.resolve().parent if model.resolve().name == MODEL_FOLDER else None
    return None if run is None or not (run / CONFIG_FILE).is_file() else model.parent
