"""Checkpoints: atomic, bounded, the newest complete one found again (around section 10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mempo.runtime.checkpoint_files import (
    checkpoint_path,
    complete_checkpoints,
    keep_newest,
    last_checkpoint,
)
from mempo.training.checkpoint_io import AtomicCheckpointIO


def save(run: Path, epoch: int) -> Path:
    path = checkpoint_path(run, epoch)
    AtomicCheckpointIO().save_checkpoint({"epoch": epoch}, path)
    return path


def save_sharded(run: Path, epoch: int, *, complete: bool) -> Path:
    path = checkpoint_path(run, epoch)
    path.mkdir(parents=True)
    (path / "__0_0.distcp").touch()
    if complete:
        (path / "meta.pt").touch()
    return path


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, 4)
    assert path.name == "epoch-00005.ckpt"
    assert torch.load(path, weights_only=True) == {"epoch": 4}
    assert [file.name for file in path.parent.iterdir()] == ["epoch-00005.ckpt"]


def test_a_write_that_breaks_off_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, 0)

    def half(value: Any, file: Any) -> None:
        file.write(b"half of a check")
        raise OSError("no space left on device")

    monkeypatch.setattr("mempo.training.checkpoint_io.torch.save", half)
    with pytest.raises(OSError, match="no space left"):
        AtomicCheckpointIO().save_checkpoint({"epoch": 9}, path)
    monkeypatch.undo()
    assert torch.load(path, weights_only=True) == {"epoch": 0}
    assert last_checkpoint(tmp_path) == path
    keep_newest(tmp_path, 2)
    assert sorted(file.name for file in path.parent.iterdir()) == ["epoch-00001.ckpt", "last.ckpt"]


def test_the_newest_stay_and_last_points_to_the_newest(tmp_path: Path) -> None:
    for epoch in (8, 9, 99_998):
        save(tmp_path, epoch)
        keep_newest(tmp_path, 2)
    assert [path.name for path in complete_checkpoints(tmp_path)] == [
        "epoch-00010.ckpt",
        "epoch-99999.ckpt",
    ]
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True) == {
        "epoch": 99_998
    }


def test_a_sharded_checkpoint_without_its_last_file_does_not_count(tmp_path: Path) -> None:
    whole = save_sharded(tmp_path, 0, complete=True)
    save_sharded(tmp_path, 1, complete=False)
    assert last_checkpoint(tmp_path) == whole
    older = save_sharded(tmp_path, 2, complete=True)
    keep_newest(tmp_path, 1)
    assert complete_checkpoints(tmp_path) == [older]
    assert (tmp_path / "checkpoints" / "last.ckpt").resolve() == older.resolve()


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    keep_newest(tmp_path, 1)
