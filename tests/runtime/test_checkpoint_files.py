"""What a run made behind which checkpoint, and which checkpoints a kill leaves (around the
method)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mempo.runtime.checkpoint_files import (
    checkpoint_path,
    complete_checkpoints,
    drop_later,
    is_made,
    keep_newest,
    last_checkpoint,
    note_made,
)


def save(run: Path, epoch: int) -> Path:
    path = checkpoint_path(run, epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    return path


def test_what_was_made_behind_an_older_checkpoint_is_owed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert not is_made(tmp_path, "model")
    note_made(tmp_path, "model")
    assert is_made(tmp_path, "model")
    assert not is_made(tmp_path, "after")
    note_made(tmp_path, "after")
    assert is_made(tmp_path, "model")
    assert is_made(tmp_path, "after")
    save(tmp_path, 2)
    assert not is_made(tmp_path, "model")
    assert not is_made(tmp_path, "after")


def test_a_copy_owes_what_the_run_owes(tmp_path: Path) -> None:
    """Whatever the copy makes of times."""
    run, copied = tmp_path / "run", tmp_path / "copied"
    save(run, 1)
    note_made(run, "model")
    newest = save(run, 2)
    shutil.copytree(run, copied)
    os.utime(copied / "checkpoints" / newest.name, (1, 1))
    assert not is_made(copied, "model")


def test_a_note_that_is_broken_counts_as_none(tmp_path: Path) -> None:
    save(tmp_path, 1)
    note_made(tmp_path, "model")
    for text in ('{"model": "epo', "null", "[1]"):
        (tmp_path / "checkpoints" / "made.json").write_text(text, encoding="utf-8")
        assert not is_made(tmp_path, "model")
    note_made(tmp_path, "model")
    assert is_made(tmp_path, "model")


def test_a_run_that_goes_on_from_an_earlier_checkpoint_drops_the_later_ones(tmp_path: Path) -> None:
    """Or the next ``resume=auto`` would go on from what was given up. What was made behind them is
    owed again: the checkpoint of the same name comes from another continuation."""
    first, second, third = (save(tmp_path, epoch) for epoch in range(3))
    keep_newest(tmp_path, 3)
    note_made(tmp_path, "model")
    drop_later(tmp_path, 3)
    assert complete_checkpoints(tmp_path) == [first, second, third]
    assert is_made(tmp_path, "model")
    drop_later(tmp_path, 2)
    assert last_checkpoint(tmp_path) == second
    keep_newest(tmp_path, 3)
    assert (tmp_path / "checkpoints" / "last.ckpt").resolve() == second.resolve()
    assert save(tmp_path, 2) == third
    assert not is_made(tmp_path, "model")


def test_checkpoints_are_ordered_by_their_epochs_and_others_names_are_left_alone(
    tmp_path: Path,
) -> None:
    for epoch in (99_998, 99_999):
        save(tmp_path, epoch)
    for name in ("epoch-best.ckpt", "epoch-00001-copy.ckpt"):
        (tmp_path / "checkpoints" / name).touch()
    names = ["epoch-99999.ckpt", "epoch-100000.ckpt"]
    assert [path.name for path in complete_checkpoints(tmp_path)] == names
    drop_later(tmp_path, 0)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["epoch-00001-copy.ckpt", "epoch-best.ckpt"]


def test_a_sharded_checkpoint_that_is_half_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while its folder is removed; the next tidying takes the rest."""
    for epoch in range(2):
        checkpoint_path(tmp_path, epoch).mkdir(parents=True)
        (checkpoint_path(tmp_path, epoch) / "meta.pt").touch()

    def killed(folder: Path, ignore_errors: bool = False) -> None:
        if Path(folder).exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        drop_later(tmp_path, 1)
    monkeypatch.undo()
    assert last_checkpoint(tmp_path) == checkpoint_path(tmp_path, 0)
    keep_newest(tmp_path, 2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["epoch-00001.ckpt", "last.ckpt"]


def test_a_kill_between_two_steps_of_keeping_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """A checkpoint was written, and the link and the old ones were not seen to."""
    for epoch in range(2):
        save(tmp_path, epoch)
        keep_newest(tmp_path, 2)
    save(tmp_path, 2)
    keep_newest(tmp_path, 2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["epoch-00002.ckpt", "epoch-00003.ckpt", "last.ckpt"]
