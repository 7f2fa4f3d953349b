"""A run's checkpoints on the disk: their names, the newest complete one, and how many stay."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from mempo.runtime.run_files import write_json
from mempo.runtime.run_folder import CHECKPOINTS_FOLDER, LAST_CHECKPOINT, MADE_FILE

_NAME = re.compile(r"epoch-\d+\.ckpt")

UNFINISHED = ".tmp"
"""Ending of a checkpoint that is being written."""

LAST_OF_SHARDED = "meta.pt"
"""What Lightning writes last into the folder of a sharded checkpoint."""


def checkpoint_folder(run_dir: str | Path) -> Path:
    """Where a run keeps its checkpoints."""
    return Path(run_dir) / CHECKPOINTS_FOLDER


def checkpoint_path(run_dir: str | Path, epoch: int) -> Path:
    """The checkpoint at the end of ``epoch`` (from 0); its name counts finished epochs."""
    return checkpoint_folder(run_dir) / f"epoch-{epoch + 1:05d}.ckpt"


def finished_epochs(checkpoint: Path) -> int:
    """How many epochs a run had finished when it wrote this checkpoint, by its name."""
    return int(checkpoint.name.removeprefix("epoch-").partition(".")[0])


def complete_checkpoints(run_dir: str | Path) -> list[Path]:
    """A run's complete checkpoints, the oldest first. Sharded ones are folders."""
    found = all_checkpoints(run_dir)
    return [path for path in found if path.is_file() or (path / LAST_OF_SHARDED).is_file()]


def all_checkpoints(run_dir: str | Path) -> list[Path]:
    """What has a checkpoint's name, the oldest first; a sharded one may have lost a part since."""
    found = checkpoint_folder(run_dir).glob("epoch-*.ckpt")
    named = (path for path in found if _NAME.fullmatch(path.name))
    return sorted(named, key=finished_epochs)


def last_checkpoint(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next(reversed(complete_checkpoints(run_dir)), None)


def is_made(run_dir: str | Path, what: str) -> bool:
    """Whether a run made ``what`` (its model, its last evaluation) behind its newest checkpoint, as
    it notes itself: times of files change when a folder is copied."""
    made = _made(run_dir)
    return what in made and made[what] == _newest_name(run_dir)


def note_made(run_dir: str | Path, what: str) -> None:
    """Notes that ``what`` was made behind the newest checkpoint, and is whole on the disk."""
    write_json(_made_file(run_dir), {**_made(run_dir), what: _newest_name(run_dir)})


def _made(run_dir: str | Path) -> dict[str, Any]:
    try:
        found = json.loads(_made_file(run_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # it is made again, which gives the same
    return found if isinstance(found, dict) else {}


def _made_file(run_dir: str | Path) -> Path:
    return checkpoint_folder(run_dir) / MADE_FILE


def _newest_name(run_dir: str | Path) -> str | None:
    last = last_checkpoint(run_dir)
    return None if last is None else last.name


def drop_later(run_dir: str | Path, finished: int) -> None:
    """Removes the checkpoints behind the first ``finished`` epochs, as a run's other files lose the
    lines that it writes again. ``resume=auto`` would go on from them, and what was made behind
    them would pass for made behind their namesakes."""
    later = [path for path in all_checkpoints(run_dir) if finished_epochs(path) > finished]
    if later:
        _made_file(run_dir).unlink(missing_ok=True)
    for path in later:
        _remove(path)


def keep_newest(run_dir: str | Path, count: int) -> None:
    """Points ``last.ckpt`` to the newest complete checkpoint, and removes all but the newest
    ``count`` and what a kill left of others."""
    folder, complete = checkpoint_folder(run_dir), complete_checkpoints(run_dir)
    if complete:
        link = folder / f"{LAST_CHECKPOINT}{UNFINISHED}"
        link.unlink(missing_ok=True)
        link.symlink_to(complete[-1].name)
        link.replace(folder / LAST_CHECKPOINT)
    for path in complete[:-count]:
        _remove(path)
    for path in folder.glob(f"epoch-*{UNFINISHED}"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _remove(path: Path) -> None:
    """Removes a checkpoint; a folder loses its name first, or a kill would leave a part of it under
    the name of a whole one."""
    if not path.is_dir():
        path.unlink()
        return
    unfinished = path.with_name(path.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(path.rename(unfinished))
