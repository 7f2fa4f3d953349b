"""Checkpoints: atomic, bounded, the newest complete one found again (around section 10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from mempo.runtime.checkpoint_files import (
    checkpoint_path,
    complete_checkpoints,
    keep_newest,
    last_checkpoint,
)
from mempo.runtime.errors import ConfigError
from mempo.training.checkpoint_io import AtomicCheckpointIO, checkpoint_to_go_on_from


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


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_a_checkpoint_that_is_cut_off_is_named_and_the_older_one_taken(
    tmp_path: Path, kept: float
) -> None:
    older, newest = save(tmp_path, 0), save(tmp_path, 1)
    said: list[str] = []
    assert checkpoint_to_go_on_from(tmp_path, said.append) == newest
    assert said == []
    data = newest.read_bytes()
    newest.write_bytes(data[: int(len(data) * kept)])
    assert checkpoint_to_go_on_from(tmp_path, said.append) == older
    assert said == [
        f"{newest} is damaged (cut off, or not a checkpoint): going on from the older {older}, "
        "which is whole"
    ]
    older.unlink()
    with pytest.raises(ConfigError) as told:
        checkpoint_to_go_on_from(tmp_path, said.append)
    assert str(told.value) == (
        f"{newest} is damaged (cut off, or not a checkpoint), and there is no older checkpoint: "
        "bring it back from a copy, or remove it, and resume=auto begins again with the first epoch"
    )
    newest.unlink()
    assert checkpoint_to_go_on_from(tmp_path, said.append) is None


def save_shards(run: Path, epoch: int) -> Path:
    """A folder as one process of Lightning's sharded strategy writes it."""
    path = checkpoint_path(run, epoch)
    weights = {"a": torch.arange(6.0), "b": torch.ones(100)}
    save_distributed(weights, storage_writer=FileSystemWriter(path), no_dist=True)
    torch.save({"epoch": epoch}, path / "meta.pt")
    return path


def test_a_sharded_checkpoint_that_lost_a_part_is_named_and_the_older_one_taken(
    tmp_path: Path,
) -> None:
    older, newest = save_shards(tmp_path, 0), save_shards(tmp_path, 1)
    (shard,) = newest.glob("*.distcp")
    said: list[str] = []
    assert checkpoint_to_go_on_from(tmp_path, said.append) == newest
    shard.write_bytes(shard.read_bytes()[:-1])
    assert checkpoint_to_go_on_from(tmp_path, said.append) == older
    for name in (shard.name, ".metadata", "meta.pt"):
        (newest / name).unlink()
        assert checkpoint_to_go_on_from(tmp_path, said.append) == older
    end = f": going on from the older {older}, which is whole"
    assert said == [
        f"{newest} is damaged ({reason}){end}"
        for reason in (
            f"{shard.name} is cut off",
            f"without {shard.name}",
            "without .metadata",
            "without meta.pt",
        )
    ]
