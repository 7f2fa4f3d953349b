"""The models that ``evaluate.py`` is asked for, checked before any engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.agent.conversation import Conversation
from mempo.agent.tools import protocol_of
from mempo.config import Config
from mempo.evaluation.named_models import model_folder, named_models
from mempo.models.loading import load_tokenizer
from mempo.models.stand_in_tokenizer import StandInTokenizer
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.names import short_labels


@dataclass(frozen=True)
class EvaluatedModel:
    """``name`` is what files call the model: its folder or hub name (``path``), or the name that
    ``evaluation.models`` gives it. ``label`` is a short name for tables and the picture. ``config``
    says how it is spoken to and run."""

    name: str
    label: str
    path: str
    conversation: Conversation
    config: Config


def evaluated_models(
    config: Config, own: Mapping[str, Config] | None = None
) -> list[EvaluatedModel]:
    """The models of ``evaluation.models`` or ``evaluation.model_path``, in their order.

    ``own`` has the settings of models that bring some, by what the setting calls the model; the
    others have ``config``. Raises ``ConfigError`` for a folder without a model, a tokenizer that
    cannot be opened, a model without a chat template, and a model that is named twice.
    """
    setting, wanted = named_models(config.evaluation.model_path, config.evaluation.models)
    served = config.engine.kind == "openai"
    paths = {name: model_folder(path, setting, served) for name, path in wanted.items()}
    for path in paths.values():
        if list(paths.values()).count(path) > 1:
            raise ConfigError(f"{setting} names {path} twice: name it once")
    if served and config.engine.served_model is not None and len(paths) > 1:
        raise ConfigError(
            f"engine.served_model={config.engine.served_model} is one model, and {setting} names "
            f"{len(paths)}: leave it out, and give the models the names that the server has"
        )
    configs = [(own or {}).get(name, config) for name in wanted]
    named = isinstance(config.evaluation.models, Mapping)
    names = list(paths) if named else list(paths.values())
    labels = names if named else short_labels(names)
    return [
        EvaluatedModel(name, label, path, _conversation(path, setting, its), its)
        for name, label, path, its in zip(names, labels, paths.values(), configs, strict=True)
    ]


def _conversation(path: str, setting: str, config: Config) -> Conversation:
    try:
        return Conversation(
            _tokenizer(path, setting, config), config.model.system_prompt, protocol_of(config.tools)
        )
    except MempoError as error:
        raise ConfigError(f"{setting}={path}: {error}") from None


def _tokenizer(path: str, setting: str, config: Config) -> Any:
    """The model's own; of a served model that has none here, one that counts for it."""
    local, engine = Path(path).expanduser().is_dir(), config.engine
    hosted = engine.kind == "openai" and engine.protocol != "completions" and not local
    if hosted and (engine.protocol == "chat" or path.count("/") != 1):
        return StandInTokenizer()
    try:
        return load_tokenizer(path, config.model.chat_template)
    except (OSError, ValueError) as error:
        if hosted:
            return StandInTokenizer()
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{setting}={path}: its tokenizer cannot be opened ({reason}): give a complete model "
            "folder, or a hub name that can be reached"
        ) from None
