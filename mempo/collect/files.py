"""The files of a collection: the one that is asked for, and two beside it.

``teacher.jsonl`` gets its rows at the end; ``teacher.attempts.jsonl`` gets every finished attempt
at once, so that a stopped call goes on; ``teacher.collected.json`` says what decided them, and what
was dropped and why.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo.collect.selection import Record
from mempo.records.trajectory_lines import trajectory_records
from mempo.runtime.errors import ConfigError
from mempo.runtime.nested import leaves
from mempo.runtime.run_files import append_lines, read_json, write_json, write_lines
from mempo.trajectory import Task

_NEEDED = ("policy_tokens", "tool_errors", "ending", "metrics", "format_valid", "question")
_SHOWN = 5


class CollectedFiles:
    """The three files. ``settings`` is what decides the attempts.

    Raises ``ConfigError`` when they hold a collection with other settings, or files of something
    else, and ``MempoError`` for a damaged line.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.output = output
        self.attempts_file = output.with_suffix(".attempts.jsonl")
        self.counts_file = output.with_suffix(".collected.json")
        self._settings = settings
        self.records: dict[tuple[str, int], dict[str, Any]] = {}
        self._check()

    def open(self, tasks: Sequence[Task]) -> None:
        """Reads the attempts that are there. Raises ``ConfigError`` where they are at other
        questions."""
        questions = {task.id: task.question for task in tasks}
        if self.attempts_file.exists():
            for number, record in enumerate(trajectory_records(self.attempts_file), start=1):
                place = f"{self.attempts_file}, line {number}"
                missing = next((name for name in _NEEDED if name not in record), None)
                if missing is not None:
                    raise ConfigError(f"{place}: {missing} is missing; repair or remove that line")
                if questions.get(record["task"], record["question"]) != record["question"]:
                    raise ConfigError(
                        f"{place}: task {record['task']} was another question: the files of "
                        "questions have changed; choose another --output"
                    )
                self.records[record["task"], record["sample"]] = record
            write_lines(self.attempts_file, self.records.values())
        write_json(self.counts_file, {"settings": self._settings})

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends a finished attempt; the disk has it when this returns."""
        append_lines(self.attempts_file, [record])
        self.records[record["task"], record["sample"]] = dict(record)

    def forget_tool_errors(self) -> None:
        """Takes out the attempts in which a tool failed, so that the next call does them again."""
        self.records = {key: one for key, one in self.records.items() if not one["tool_errors"]}
        write_lines(self.attempts_file, self.records.values())

    def finish(self, rows: Sequence[Record], counts: Mapping[str, Any]) -> None:
        """Writes what was kept, and the counts."""
        write_lines(self.output, rows)
        write_json(self.counts_file, {**counts, "settings": self._settings})

    def _check(self) -> None:
        if not self.counts_file.exists():
            for file in (self.output, self.attempts_file):
                if file.exists():
                    raise ConfigError(
                        f"--output {self.output}: {file} is there, and {self.counts_file} is not: "
                        "it is no collection; choose another file"
                    )
            return
        found = read_json(self.counts_file).get("settings")
        before = leaves(found) if isinstance(found, Mapping) else {}
        now = leaves(self._settings)
        changed = [
            f"  {key}: {before.get(key)} there, {now.get(key)} now"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ]
        if changed:
            more = f"\n  and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise ConfigError(
                f"--output {self.output}: it was begun with other settings:\n"
                + "\n".join(changed[:_SHOWN])
                + f"{more}\nGo on with the same ones, or choose another file."
            )


@contextmanager
def claimed(output: Path) -> Iterator[None]:
    """Keeps a second call away from the same file within the block. Raises ``ConfigError`` when
    one is at work on it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = output.with_suffix(".lock")
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--output {output}: another call is at work on it: wait for it, or choose another "
                "file"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(handle)
