"""The supervised start that the package brings (``sft=long``), so that a run begins with RL.

``shipped/`` holds the model folder and ``start.json``: the settings that made it, as the digest of
``recipe``, the command, and the SHA-256 of every file. ``scripts/ship_start.py`` writes it from a
start that was trained by ``stage=sft``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mempo.config import Config
from mempo.demonstrations.start import start_key
from mempo.runtime.cache import file_digest, key_digest
from mempo.runtime.errors import MempoError
from mempo.runtime.run_files import write_json

SHIPPED: Final = Path(__file__).parent / "shipped"
RECORD: Final = "start.json"


def recipe(config: Config) -> dict[str, Any]:
    """All settings that decide what the tiny model's supervised start becomes."""
    return {**start_key(config), "architecture": config.model.architecture}


def shipped_start(config: Config, folder: Path = SHIPPED) -> Path | None:
    """The shipped start, where the configuration asks for the one that it is.

    None for another model and for other settings of demonstrations and supervised training. Raises
    ``MempoError`` when a file is not what was shipped.
    """
    record_file = folder / RECORD
    world = config.model.source == "tiny" and config.sft.source == "world"
    if not world or config.sft.train != "all" or not record_file.is_file():
        return None
    record = json.loads(record_file.read_text(encoding="utf-8"))
    if record["recipe"] != key_digest(recipe(config)):
        return None
    for name, digest in record["files"].items():
        if not (folder / name).is_file() or file_digest(folder / name) != digest:
            raise MempoError(
                f"{folder / name}: not the file that was shipped (its SHA-256 differs): install "
                "the package again, or train the start with stage=sft"
            )
    return folder


def write_record(config: Config, folder: Path, notes: Mapping[str, Any]) -> None:
    """Notes beside a trained start in ``folder`` what it is; ``notes`` are for people."""
    files = {
        path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name != RECORD
    }
    record = {"recipe": key_digest(recipe(config)), **notes, "files": files}
    write_json(folder / RECORD, record)
