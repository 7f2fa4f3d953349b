"""Folders that runs share: made once, found again by what they were made from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mempo.runtime.disk import require_writable, writing

FORMAT = 1
"""Raise it when the code that makes cached folders changes what they hold."""


def cached_path(cache_dir: str, name: str, key: Mapping[str, Any]) -> Path:
    """Where the folder for ``key`` (plain values and dataclasses) is or would be."""
    return Path(cache_dir) / f"{name}-{key_digest(key)}"


def key_digest(key: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that stand for ``key`` (plain values and dataclasses)."""
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_folder(
    cache_dir: str, name: str, key: Mapping[str, Any], make: Callable[[Path], None]
) -> Path:
    """The folder for ``key``, made by ``make`` when it is not there.

    It is written under a temporary name and renamed, so a killed run leaves no half of it; of two
    processes that make it at once, one wins and both find the same.
    """
    target = cached_path(cache_dir, name, key)
    if target.is_dir():
        return target
    require_writable(cache_dir, "cache_dir")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        with writing(target):
            make(temporary)
        temporary.chmod(0o755)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a cache key")
