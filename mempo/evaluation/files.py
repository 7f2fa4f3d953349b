"""What ``evaluate.py`` keeps in its run folder, so that a stopped call goes on where it was.

``evaluation_settings.json`` says what is evaluated; ``trajectories.jsonl`` gets a line for each
finished trajectory at once. A call with another configuration is refused. Of several processes each
writes its own ``trajectories.part-<n>.jsonl``; they are joined at the next chance.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mempo.config import Config
from mempo.evaluation.evaluate import evaluation_entry, summary
from mempo.evaluation.models import EvaluatedModel
from mempo.evaluation.settings import OF_EACH_MODEL, SHARED, deciding_settings
from mempo.records.trajectory_lines import trajectory_records
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.nested import leaves
from mempo.runtime.run_files import append_lines, read_json, write_json, write_lines
from mempo.runtime.run_folder import (
    EVALUATION_FILE,
    EVALUATION_SETTINGS_FILE,
    TRAJECTORIES_FILE,
)
from mempo.trajectory import Task

Key = tuple[str, str, int, str]
"""Which trajectory: model, context mode, number of objectives, task."""

_SHOWN_DIFFERENCES: Final = 5


def evaluation_settings_record(
    config: Config, models: Sequence[EvaluatedModel], tasks: Mapping[int, Sequence[Task]]
) -> dict[str, Any]:
    """All that decides the figures: settings, models (by name: folder or hub name with the sizes
    and times of its files, and its own settings), and a digest of the tasks of each number of
    objectives."""
    record = {
        "seed": config.seed,
        **deciding_settings(config, SHARED),
        "models": {
            model.name: {
                "path": model.path,
                **deciding_settings(model.config, OF_EACH_MODEL),
                **_files(model.path),
            }
            for model in models
        },
        "tasks": {str(count): _digest(chosen) for count, chosen in tasks.items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps a second ``evaluate.py`` out of it within the block. Raises
    ``ConfigError`` when one is at work there."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"run_dir={folder}: another evaluate.py is at work there: wait for it, or choose "
                "another folder"
            ) from None
        yield
    finally:
        os.close(handle)


class EvaluationFolder:
    """The run folder of an evaluation, new or to be gone on with.

    Args:
        folder: ``config.run_dir``.
        settings: ``evaluation_settings_record``.
        part: which of several processes writes here; ``None``: the only one that is at work, which
            joins the parts that others left.

    Raises:
        ConfigError: the folder holds another evaluation or another program's run; the message names
            what differs.
        MempoError: a file of the folder is damaged; the message names the line.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], part: int | None = None) -> None:
        self.folder = folder
        self._check(settings)
        found = {path: _read(path) for path in (folder / TRAJECTORIES_FILE, *parts(folder))}
        self.records = {key: one for lines in found.values() for key, one in lines.items()}
        self._path = folder / (TRAJECTORIES_FILE if part is None else _part_name(part))
        own = self.records if part is None else found.get(self._path, {})
        if own:
            write_lines(self._path, own.values())  # without a half-written last line
        if part is None:
            for path in parts(folder):
                path.unlink()
        if not part:
            write_json(folder / EVALUATION_SETTINGS_FILE, settings)

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends one finished trajectory's line; the disk has it when this returns."""
        append_lines(self._path, [record])
        self.records[trajectory_key(record)] = dict(record)

    def forget_failures(self) -> None:
        """Takes out the trajectories in which a tool failed for a reason that is not the model's
        own, or a judge gave no verdict, so that the next call does them again."""
        kept = {
            key: one
            for key, one in self.records.items()
            if not one["tool_errors"] and not one["metrics"].get("judge_failed")
        }
        if len(kept) < len(self.records):
            self.records = kept
            write_lines(self._path, kept.values())

    def sort(self, order: Sequence[Key]) -> None:
        """Puts the lines into ``order``: while trajectories run, they come as they finish."""
        if others := self.records.keys() - set(order):
            print(f"{self._path}: {len(others)} lines of no task of this evaluation were left out")
        self.records = {key: self.records[key] for key in order}
        write_lines(self._path, self.records.values())

    def _check(self, settings: Mapping[str, Any]) -> None:
        path = self.folder / EVALUATION_SETTINGS_FILE
        if not path.exists():
            for name in (TRAJECTORIES_FILE, EVALUATION_FILE):
                if (self.folder / name).exists():
                    raise ConfigError(
                        f"run_dir={self.folder}: its {name} is not evaluate.py's: choose another "
                        "folder"
                    )
            return
        before = read_json(path)
        old, new = leaves(before), leaves(settings)
        changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        if changed:
            told = [
                f"  {key}: {_told(old.get(key))} there, {_told(new.get(key))} now"
                for key in changed[:_SHOWN_DIFFERENCES]
            ]
            more = len(changed) - len(told)
            raise ConfigError(
                f"run_dir={self.folder}: it holds an evaluation with another configuration:\n"
                + "\n".join(told)
                + (f"\n  and {more} more" if more else "")
                + "\nGo on with the same configuration, or choose another folder."
            )


def parts(folder: Path) -> list[Path]:
    """What several processes wrote and nobody has joined yet."""
    return sorted(folder.glob(_part_name("*")))


def finished(folder: Path) -> int:
    """Lines of all parts, the last of each perhaps half-written."""
    return sum(path.read_bytes().count(b"\n") for path in parts(folder))


def known_keys(folder: Path) -> set[Key]:
    """The trajectories that are there, joined or not."""
    return {key for path in (folder / TRAJECTORIES_FILE, *parts(folder)) for key in _read(path)}


def _part_name(part: int | str) -> str:
    stem, _, ending = TRAJECTORIES_FILE.rpartition(".")
    return f"{stem}.part-{part}.{ending}"


def _read(path: Path) -> dict[Key, dict[str, Any]]:
    """The trajectories of a file, which may not be there."""
    found: dict[Key, dict[str, Any]] = {}
    if path.exists():
        for number, record in enumerate(trajectory_records(path), start=1):
            _check_record(record, f"{path}, line {number}")
            found[trajectory_key(record)] = record
    return found


def _check_record(record: Mapping[str, Any], place: str) -> None:
    """Raises ``MempoError`` for a line that lacks what the figures need."""
    try:
        evaluation_entry([summary(record)], 0, 0)
        missing = next((one for one in ("model", "context", "ending") if not record[one]), None)
    except KeyError as error:
        missing = str(error.args[0])
    if missing is not None:
        raise MempoError(f"{place}: {missing} is missing; repair or remove that line")


def trajectory_key(record: Mapping[str, Any]) -> Key:
    """Which trajectory a line is."""
    return record["model"], record["context"], len(record["golds"]), record["task"]


def _files(model: str) -> dict[str, Any]:
    """Sizes and times of a model folder's files; nothing for a hub name."""
    folder = Path(model)
    if not folder.is_dir():
        return {}
    found = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    return {"files": {name: f"{one.st_size} bytes, {one.st_mtime_ns}" for name, one in found}}


def _digest(tasks: Sequence[Task]) -> str:
    plain = [[task.id, [[one.question, one.golds] for one in task.objectives]] for task in tasks]
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    return f"{len(tasks)} tasks, {digest[:16]}"


def _told(value: Any) -> str:
    return "nothing" if value is None else str(value)
