"""What can be told before seconds of imports: files and folders that are named and not there."""

from __future__ import annotations

from pathlib import Path

from mempo.config import Config, ConfigError, require_path
from mempo.data.formats.reading import is_hub_name


def check_paths(config: Config) -> None:
    """Raises ``ConfigError`` with the setting for the first path that does not exist."""
    data, model = config.data, config.model
    if data.corpus is not None:
        require_path(data.corpus, "data.corpus")
    for setting, path in (
        ("data.questions", data.questions),
        ("data.heldout_questions", data.heldout_questions),
    ):
        if path is not None and (data.format == "local" or not is_hub_name(path)):
            require_path(path, setting)
    if model.source == "pretrained" and model.path is not None:
        check_model_folder(model.path, "model.path")
    if config.ckpt_path is not None:
        require_path(config.ckpt_path, "ckpt_path")


def check_model_folder(path: str, setting: str) -> None:
    """Raises ``ConfigError`` unless ``path`` is a Hugging Face model folder or a hub name."""
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
    if looks_local and not (Path(path).expanduser() / "config.json").is_file():
        raise ConfigError(
            f"{setting}={path}: there is no config.json; give a Hugging Face model folder (a "
            "run's model/ folder is one) or a hub name like owner/name"
        )
