"""Checkpoints that a kill cannot spoil."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch import Tensor

from mempo.runtime.checkpoint_files import UNFINISHED
from mempo.runtime.errors import ConfigError


def check_fits(path: str | Path, weights: Mapping[str, Tensor]) -> None:
    """Raises ``ConfigError`` unless ``path`` is a checkpoint of a model with these names and
    shapes. Sharded checkpoints, which are folders, are left to Lightning."""
    if Path(path).is_dir():
        return
    try:
        saved = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["state_dict"]
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
        raise ConfigError(f"ckpt_path={path} is not a checkpoint of a run") from error
    here = {name: tuple(value.shape) for name, value in weights.items()}
    there = {name: tuple(value.shape) for name, value in saved.items()}
    differing = sorted(n for n in {*here, *there} if here.get(n) != there.get(n))
    if differing:
        raise ConfigError(
            f"{path} was written with another model: {len(differing)} weights are missing on one "
            f"side or have another shape, such as {differing[0]}; go on with the settings that the "
            "run had (its .hydra/overrides.yaml)"
        )


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
