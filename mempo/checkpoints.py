"""Checkpoints that a kill cannot spoil, and how many of them a run keeps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

UNFINISHED = ".tmp"
_LAST_OF_SHARDED = "meta.pt"
"""What Lightning writes last into the folder of a sharded checkpoint."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the checkpoint's place, waits for the disk, and renames.

    Lightning's own writes to the system's temporary folder, which may be another file system: its
    move is then a copy that a kill leaves half done. It also holds the whole file in memory.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Saves ``checkpoint``; until the rename, ``path`` is what it was."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(target.name + UNFINISHED)
        with temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)


def checkpoint_folder(run_dir: str | Path) -> Path:
    """Where a run keeps its checkpoints."""
    return Path(run_dir) / "checkpoints"


def checkpoint_path(run_dir: str | Path, epoch: int) -> Path:
    """The checkpoint at the end of ``epoch`` (from 0); its name counts finished epochs."""
    return checkpoint_folder(run_dir) / f"epoch-{epoch + 1:05d}.ckpt"


def complete_checkpoints(run_dir: str | Path) -> list[Path]:
    """A run's complete checkpoints, the oldest first. Sharded ones are folders."""
    found = checkpoint_folder(run_dir).glob("epoch-*.ckpt")
    return sorted(path for path in found if path.is_file() or (path / _LAST_OF_SHARDED).is_file())


def last_checkpoint(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next(reversed(complete_checkpoints(run_dir)), None)


def keep_newest(run_dir: str | Path, count: int) -> None:
    """Points ``last.ckpt`` to the newest complete checkpoint, and removes all but the newest
    ``count`` and what a kill left of others."""
    folder, complete = checkpoint_folder(run_dir), complete_checkpoints(run_dir)
    if complete:
        link = folder / f"last.ckpt{UNFINISHED}"
        link.unlink(missing_ok=True)
        link.symlink_to(complete[-1].name)
        link.replace(folder / "last.ckpt")
    for path in [*complete[:-count], *folder.glob(f"epoch-*{UNFINISHED}")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
