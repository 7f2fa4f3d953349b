"""A run's checkpoints on the disk: their names, the newest complete one, and how many stay."""

from __future__ import annotations

import shutil
from pathlib import Path

from mempo.runtime.run_folder import CHECKPOINTS_FOLDER, LAST_CHECKPOINT

UNFINISHED = ".tmp"
"""Ending of a checkpoint that is being written."""

_LAST_OF_SHARDED = "meta.pt"
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
    found = checkpoint_folder(run_dir).glob("epoch-*.ckpt")
    return sorted(path for path in found if path.is_file() or (path / _LAST_OF_SHARDED).is_file())


def last_checkpoint(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next(reversed(complete_checkpoints(run_dir)), None)


def is_newer_than_checkpoints(path: Path, run_dir: str | Path) -> bool:
    """Whether a file is there and was written after the run's last checkpoint, as everything is
    that a finished run leaves."""
    last = last_checkpoint(run_dir)
    if not path.is_file():
        return False
    return last is None or path.stat().st_mtime >= last.stat().st_mtime


def keep_newest(run_dir: str | Path, count: int) -> None:
    """Points ``last.ckpt`` to the newest complete checkpoint, and removes all but the newest
    ``count`` and what a kill left of others."""
    folder, complete = checkpoint_folder(run_dir), complete_checkpoints(run_dir)
    if complete:
        link = folder / f"{LAST_CHECKPOINT}{UNFINISHED}"
        link.unlink(missing_ok=True)
        link.symlink_to(complete[-1].name)
        link.replace(folder / LAST_CHECKPOINT)
    for path in [*complete[:-count], *folder.glob(f"epoch-*{UNFINISHED}")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
