"""The models that ``evaluate.py`` is asked for, checked before any engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mempo.agent.conversation import Conversation
from mempo.config import Config, EvaluationConfig, ModelConfig
from mempo.models.loading import load_tokenizer
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.run_folder import MODEL_FOLDER
from mempo.runtime.short_names import short_labels

_WEIGHTS: Final = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class EvaluatedModel:
    """``name`` is what files call the model: its folder or hub name (``path``), or the name that
    ``evaluation.models`` gives it. ``label`` is a short name for tables and the picture."""

    name: str
    label: str
    path: str
    conversation: Conversation


def evaluated_models(config: Config) -> list[EvaluatedModel]:
    """The models of ``evaluation.models`` or ``evaluation.model_path``, in their order.

    Raises ``ConfigError`` for a folder without a model, a tokenizer that cannot be opened, a model
    without a chat template, and a model that is named twice.
    """
    setting, wanted = _wanted(config.evaluation)
    paths = {name: model_folder(path, setting) for name, path in wanted.items()}
    for path in paths.values():
        if list(paths.values()).count(path) > 1:
            raise ConfigError(f"{setting} names {path} twice: name it once")
    named = isinstance(config.evaluation.models, Mapping)
    names = list(paths) if named else list(paths.values())
    labels = names if named else short_labels(names)
    return [
        EvaluatedModel(name, label, path, _conversation(path, setting, config.model))
        for name, label, path in zip(names, labels, paths.values(), strict=True)
    ]


def _wanted(settings: EvaluationConfig) -> tuple[str, Mapping[str, str]]:
    """The setting that names the models, and what it says by name."""
    models = settings.models
    if models is None:
        if settings.model_path is None:
            raise ConfigError(
                "evaluation.model_path is empty: give a run folder, a Hugging Face folder or a hub "
                "name (evaluation.models takes several)"
            )
        return "evaluation.model_path", {settings.model_path: settings.model_path}
    if isinstance(models, Mapping):
        return "evaluation.models", models
    paths = (models,) if isinstance(models, str) else models
    return "evaluation.models", {path: path for path in paths}


def model_folder(path: str, setting: str) -> str:
    """A run folder stands for its ``model/``; anything else is a model folder or hub name.

    Raises ``ConfigError``, which names ``setting``, when a folder holds no model.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        local = path.startswith((".", "~")) or path.count("/") != 1 or folder.parent.is_dir()
        if not local:
            return path
        raise ConfigError(f"{setting}={path}: no such folder")
    for candidate in (folder / MODEL_FOLDER, folder):
        if (candidate / "config.json").is_file():
            if not any(found for kind in _WEIGHTS for found in candidate.glob(kind)):
                raise ConfigError(
                    f"{setting}={path}: {candidate} holds a config.json but no weights "
                    f"({', '.join(_WEIGHTS)}): give a complete model folder"
                )
            return str(candidate)
    raise ConfigError(
        f"{setting}={path}: neither it nor its model/ holds a config.json; give a "
        "finished run's folder or a Hugging Face model folder"
    )


def _conversation(path: str, setting: str, model: ModelConfig) -> Conversation:
    try:
        tokenizer = load_tokenizer(path, model.chat_template)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{setting}={path}: its tokenizer cannot be opened ({reason}): give a complete model "
            "folder, or a hub name that can be reached"
        ) from None
    try:
        return Conversation(tokenizer, model.system_prompt)
    except MempoError as error:
        raise ConfigError(f"{setting}={path}: {error}") from None
