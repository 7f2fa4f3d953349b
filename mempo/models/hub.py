"""A model's configuration from its folder or the hub; told at once where the hub is silent."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from mempo.runtime.errors import ConfigError

ANSWER_SECONDS = 5.0
"""How long the hub may take to answer. Its own client would try for a minute before each file."""


def read_configuration(model: str) -> dict[str, Any]:
    """What ``config.json`` of a model folder or a hub name says.

    Raises ``ConfigError`` when it cannot be read; of a hub that does not answer within seconds.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        file = folder / "config.json"
    else:
        check_hub(model)
        file = _download(model)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model}: its config.json cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"model {model}: its config.json holds no settings")
    return found


def downloaded_commit(model: str) -> str:
    """The commit of a hub model's files, as they are downloaded now or were before. Raises
    ``ConfigError`` when they cannot be read."""
    check_hub(model)
    return _download(model).parent.name  # …/snapshots/<commit>/config.json


def check_hub(model: str) -> None:
    """For a name on the hub (a folder passes): raises ``ConfigError`` when the hub does not answer
    and the model was never downloaded. Where it was, this process asks the hub no more."""
    if Path(model).expanduser().is_dir():
        return
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or (reason := _no_answer(constants.ENDPOINT, model)) is None:
        return
    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        os.environ["HF_HUB_OFFLINE"] = "1"  # of the processes that this one starts
        constants.HF_HUB_OFFLINE = True
        return
    raise ConfigError(
        f"model {model}: there is no such folder, and the hub ({constants.ENDPOINT}) cannot be "
        f"reached ({reason}); a hub name needs the network once: give a folder with the model in "
        "model.path, or evaluation.model_path for evaluate.py"
    )


def _no_answer(endpoint: str, model: str) -> str | None:
    """Why the hub gives no answer of any kind to one request; ``None`` where it gives one."""
    address = f"{endpoint}/{model}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, method="HEAD"), timeout=ANSWER_SECONDS
        ):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _download(model: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json"))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"model {model}: its config.json cannot be read from the hub ({reason}); check the "
            "name, and log in (`hf auth login`) where the model asks for its terms to be accepted"
        ) from None
