"""What a model is, whatever its folder is called: for keys of what was made from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from mempo.models.hub import downloaded_commit
from mempo.runtime.cache import file_digest
from mempo.runtime.run_files import write_json

LARGE: Final = 64 * 2**20
"""Bytes from which on a file's digest is kept, since hashing takes seconds."""

_KINDS: Final = frozenset((".json", ".safetensors", ".bin", ".model", ".txt", ".jinja", ".py"))


def model_content(model: str, kept: Path, large: int = LARGE) -> dict[str, str]:
    """Of a model folder, the SHA-256 of every file that says what the model is: weights,
    configuration, tokenizer and chat template, by name. Of a hub name, the commit.

    Digests of files from ``large`` bytes on are kept in the folder ``kept``. One is believed as
    long as path, inode, size and both times (of the content and of the inode) are the same.
    Raises ``ConfigError`` for a hub name that cannot be read.
    """
    folder = Path(model)
    if not folder.is_dir():
        return {"commit": downloaded_commit(model)}
    files = [path for path in folder.iterdir() if path.suffix in _KINDS and path.is_file()]
    return {path.name: _digest(path, kept, large) for path in sorted(files)}


def _digest(path: Path, kept: Path, large: int) -> str:
    status = path.stat()
    if status.st_size < large:
        return file_digest(path)
    place = str(path.resolve())
    identity = [
        place,
        *(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
    ]
    name = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    memo = kept / f"{name}.json"
    try:
        found = json.loads(memo.read_text(encoding="utf-8"))
        if found["identity"] == identity:
            return str(found["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never hashed, or written by half: it is hashed now
    digest = file_digest(path)
    write_json(memo, {"identity": identity, "digest": digest})
    return digest
