"""Judgements that were made before, on disk: one file for all runs that share ``cache_dir``."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mempo.runtime.disk import require_writable
from mempo.runtime.errors import MempoError

CACHE_FILE: Final = "judgements.sqlite"

_WAIT_SECONDS: Final = 60.0  # for another process that writes
_TABLE: Final = """\
create table if not exists judgements (
    key text primary key, right integer not null, model text not null, question text not null,
    golds text not null, answer text not null, reply text not null
) without rowid"""


class JudgementCache:
    """Verdicts by what they were made from: model, prompt, settings of the request, question, golds
    and answer. Thread safe, and several processes may share it. Close it.

    Raises ``MempoError`` where the file cannot be read or written.
    """

    def __init__(self, cache_dir: str) -> None:
        require_writable(cache_dir, "cache_dir")
        self.path = Path(cache_dir) / CACHE_FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        with self._told():
            self._database = sqlite3.connect(
                self.path, timeout=_WAIT_SECONDS, check_same_thread=False, isolation_level=None
            )
        try:
            with self._told():
                self._database.execute(_TABLE)
        except BaseException:
            self._database.close()
            raise

    def get(self, content: Mapping[str, Any]) -> bool | None:
        """The verdict, or ``None`` where there is none yet."""
        query = "select right from judgements where key = ?"
        with self._told(), self._lock:
            row = self._database.execute(query, (_key(content),)).fetchone()
        return None if row is None else bool(row[0])

    def put(self, content: Mapping[str, Any], right: bool, reply: str) -> None:
        """Keeps a verdict with the reply that it was read from. The first one stays."""
        row = (
            _key(content),
            int(right),
            content["model"],
            content["question"],
            json.dumps(content["golds"], ensure_ascii=False),
            content["answer"],
            reply,
        )
        clean = [
            one.encode("utf-8", "replace").decode() if type(one) is str else one for one in row
        ]
        with self._told(), self._lock:
            self._database.execute("insert or ignore into judgements values (?,?,?,?,?,?,?)", clean)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise MempoError(
                f"{self.path}: the cache of judgements cannot be used ({error}): remove it, or "
                "take another folder with cache_dir="
            ) from error


def _key(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
