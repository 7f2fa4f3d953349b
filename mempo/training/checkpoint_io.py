"""Checkpoints that a kill cannot spoil, and which one to go on from where something else did."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader

from mempo.runtime.checkpoint_files import LAST_OF_SHARDED, UNFINISHED, all_checkpoints
from mempo.runtime.disk import writing
from mempo.runtime.errors import ConfigError

_UNREADABLE = (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError)


def checkpoint_to_go_on_from(run_dir: str | Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint of a run that is whole; None where it has none. ``say`` is told which
    newer ones are damaged; raises ``ConfigError`` where all are."""
    damaged: list[str] = []
    for path in reversed(all_checkpoints(run_dir)):
        reason = damage(path)
        if reason is None:
            if damaged:
                say(f"{'; '.join(damaged)}: going on from the older {path}, which is whole")
            return path
        damaged.append(f"{path} is damaged ({reason})")
    if damaged:
        raise ConfigError(
            f"{'; '.join(damaged)}, and there is no older checkpoint: bring it back from a copy, "
            "or remove it, and resume=auto begins again with the first epoch"
        )
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in words, or None. Weights are not read: what is cut off or
    missing is seen, not a changed byte within."""
    try:
        torch.load(
            path / LAST_OF_SHARDED if path.is_dir() else path,
            map_location="cpu",
            mmap=True,
            weights_only=True,
        )
        return _lost_shard(path) if path.is_dir() else None
    except FileNotFoundError as error:
        return f"without {Path(error.filename).name}"
    except _UNREADABLE:
        return "cut off, or not a checkpoint"


def _lost_shard(folder: Path) -> str | None:
    """Looks for every piece of a sharded checkpoint that its table of contents names."""
    ends: dict[str, int] = {}
    for piece in FileSystemReader(folder).read_metadata().storage_data.values():
        end = piece.offset + piece.length
        ends[piece.relative_path] = max(end, ends.get(piece.relative_path, 0))
    for name, end in sorted(ends.items()):
        if not (folder / name).is_file():
            return f"without {name}"
        if (folder / name).stat().st_size < end:
            return f"{name} is cut off"
    return None


def check_fits(path: str | Path, weights: Mapping[str, Tensor]) -> None:
    """Raises ``ConfigError`` unless ``path`` is a checkpoint of a model with these names and
    shapes. Sharded checkpoints, which are folders, are left to Lightning."""
    if Path(path).is_dir():
        return
    try:
        saved = torch.load(path, map_location="cpu", mmap=True, weights_only=True)["state_dict"]
    except _UNREADABLE as error:
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
        """Saves ``checkpoint``; until the rename, ``path`` is what it was. Raises ``MempoError``
        where the disk takes no more."""
        target = Path(path)
        temporary = target.with_name(target.name + UNFINISHED)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            except Exception:
                temporary.unlink(missing_ok=True)
                raise
