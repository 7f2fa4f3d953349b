"""What a run made behind which checkpoint, and which checkpoints a kill leaves (around the
method)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

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
    """Or the next ``resume=auto`` would go on from what was given up."""
    first, second, third = (save(tmp_path, epoch) for epoch in range(3))
    keep_newest(tmp_path, 3)
    elsewhere = save(tmp_path / "another", 0)
    drop_later(tmp_path, elsewhere)
    drop_later(tmp_path, tmp_path / "checkpoints" / "last.ckpt")
    assert complete_checkpoints(tmp_path) == [first, second, third]
    drop_later(tmp_path, second)
    assert last_checkpoint(tmp_path) == second
    keep_newest(tmp_path, 3)
    assert (tmp_path / "checkpoints" / "last.ckpt").resolve() == second.resolve()


def test_a_kill_between_two_steps_of_keeping_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """A checkpoint was written, and the link and the old ones were not seen to."""
    for epoch in range(2):
        save(tmp_path, epoch)
        keep_newest(tmp_path, 2)
    save(tmp_path, 2)
    keep_newest(tmp_path, 2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["epoch-00002.ckpt", "epoch-00003.ckpt", "last.ckpt"]
