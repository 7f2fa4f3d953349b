"""Checkpoints that a kill cannot spoil."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from mempo.checkpoint_files import UNFINISHED


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
