"""A full disk and folders that cannot be written to: a sentence with the path and the remedy, and
what stood there stays whole (around the method)."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from mempo.command.home import use_writable_home
from mempo.models.saving import _replaced
from mempo.runtime.cache import cached_folder
from mempo.runtime.disk import disk_fault, require_writable
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.run_files import append_lines, read_lines, write_json, write_lines
from mempo.training.checkpoint_io import AtomicCheckpointIO
from tests.support.programs import ROOT

NOBODY = 65534
ROOM = 5_000
"""Bytes that a file may have in a child: a disk that is full refuses writes in the same way, with
another number."""


def in_child(act: Callable[[], object], *, room: int | None = None, user: int | None = None) -> str:
    """The error of ``act`` in a process with so much room, or of another user; "" without one."""
    end, start = os.pipe()
    if os.fork() == 0:
        told = "the child failed"
        try:
            if room is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            if user is not None and os.getuid() == 0:
                os.setgroups([])
                os.setresuid(user, user, user)
            try:
                act()
                told = ""
            except (MempoError, ConfigError) as error:
                told = str(error)
        finally:
            os.write(start, told.encode())
            os._exit(0)
    os.close(start)
    with os.fdopen(end, encoding="utf-8") as file:
        told = file.read()
    os.wait()
    return told


def full(path: Path) -> str:
    return (
        f"{path}: cannot be written (File too large): make room on its disk, or take a folder on "
        "another one. What stood there before is whole"
    )


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def open_to_all(folder: Path) -> None:
    """Lets other users into a test's folder, which lies below pytest's own (one deeper where
    several processes run tests)."""
    while folder.name and "pytest-of-" in str(folder):
        folder.chmod(0o755)
        folder = folder.parent


def test_a_line_that_finds_no_room_leaves_the_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    before = [{"epoch": 0, "text": "a" * 3000}]
    append_lines(path, before)
    told = in_child(lambda: append_lines(path, [{"epoch": 1, "text": "b" * 3000}]), room=ROOM)
    assert told == full(path)
    assert read_lines(path) == before
    append_lines(path, [{"epoch": 1}])
    assert read_lines(path) == [*before, {"epoch": 1}]


def test_a_file_that_finds_no_room_stays_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_json(path, {"before": 1})
    assert in_child(lambda: write_json(path, {"x": "a" * 2 * ROOM}), room=ROOM) == full(path)
    assert in_child(lambda: write_lines(path, [{"x": "a" * 2 * ROOM}]), room=ROOM) == full(path)
    assert json.loads(path.read_bytes()) == {"before": 1}
    assert names(tmp_path) == {"evaluation.json"}


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "epoch-00001.ckpt"
    saver = AtomicCheckpointIO()
    saver.save_checkpoint({"a": torch.ones(2)}, path)
    data = path.read_bytes()
    large = {"a": torch.zeros(ROOM)}
    assert in_child(lambda: saver.save_checkpoint(large, path), room=ROOM) == full(path)
    assert path.read_bytes() == data
    assert names(path.parent) == {path.name}


def test_a_model_that_finds_no_room_leaves_the_one_before(tmp_path: Path) -> None:
    """As safetensors says it, whose own errors are no errors of the system."""
    from safetensors.torch import save_file

    model = tmp_path / "model"

    def save(size: int) -> None:
        with _replaced(model) as unfinished:
            save_file({"a": torch.zeros(size)}, unfinished / "model.safetensors")

    save(2)
    data = (model / "model.safetensors").read_bytes()
    assert in_child(lambda: save(ROOM), room=ROOM) == full(model)
    assert (model / "model.safetensors").read_bytes() == data
    assert names(tmp_path) == {"model"}


def test_a_cache_that_finds_no_room_keeps_no_half(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "weights").write_bytes(b"a" * 2 * ROOM)

    told = in_child(lambda: cached_folder(str(tmp_path), "thing", {}, make), room=ROOM)
    assert told.startswith(f"{tmp_path}/thing-")
    assert "make room on its disk" in told
    assert names(tmp_path) == set()


def test_a_folder_of_somebody_else_is_told_before_the_work(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    for folder in (closed, closed / "runs" / "one"):
        told = in_child(partial(require_writable, folder, "run_dir"), user=NOBODY)
        assert told == (
            f"run_dir={folder} cannot be written to (Permission denied): see to its permissions, "
            "or choose another folder with run_dir="
        )
    require_writable(tmp_path / "new" / "one", "run_dir")
    assert names(tmp_path) == {"closed"}
    told = in_child(lambda: append_lines(closed / "metrics.jsonl", [{}]), user=NOBODY)
    assert told.startswith(f"{closed}/metrics.jsonl: cannot be written (Permission denied): see to")


def test_other_errors_are_not_the_disks() -> None:
    assert disk_fault(ValueError("os error")) is None
    assert disk_fault(FileNotFoundError(2, "No such file", "x")) is None
    assert disk_fault(RuntimeError("a shape")) is None


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_a_run_folder_that_cannot_be_made(tmp_path: Path, program: str) -> None:
    (tmp_path / "file").write_text("")
    run_dir = tmp_path / "file" / "run"
    ended = subprocess.run(
        [sys.executable, str(ROOT / f"{program}.py"), f"run_dir={run_dir}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {run_dir}: cannot be written (Not a directory): see to")
    assert names(tmp_path) == {"file"}


# A home folder that is not there, or cannot be written to


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "MPLCONFIGDIR", "VLLM_CACHE_ROOT"):
        monkeypatch.setenv(name, "")  # as it was before, afterwards
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_variables")
def test_a_home_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    monkeypatch.setenv("MPLCONFIGDIR", "own")
    use_writable_home(str(tmp_path))
    assert os.environ["HOME"] == str(tmp_path / "home")
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path / "home" / "vllm")
    assert os.environ["MPLCONFIGDIR"] == "own"
    assert capsys.readouterr().out == (
        "home folder: /dev/null/nobody cannot be written to; libraries keep their files in "
        f"{tmp_path}/home\n"
    )
    use_writable_home(str(tmp_path / "other"))  # it has one now
    assert names(tmp_path) == {"home"}


@pytest.mark.usefixtures("no_variables")
def test_a_home_folder_that_can_only_be_read_stays_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all(tmp_path)
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir(mode=0o555)
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    monkeypatch.setenv("HOME", str(home))

    def act() -> None:
        use_writable_home(str(cache))
        raise MempoError(f"{os.environ['HOME']} {os.environ['VLLM_CACHE_ROOT']}")

    assert in_child(act, user=NOBODY) == f"{home} {cache}/home/vllm"
    told = in_child(lambda: use_writable_home(str(home / "cache")), user=NOBODY)
    assert told.startswith(f"cache_dir={home}/cache cannot be written to (Permission denied): ")


@pytest.mark.slow
def test_a_run_without_a_home_folder(tmp_path: Path) -> None:
    settings = ["experiment=debug", f"run_dir={tmp_path}/run", f"cache_dir={tmp_path}/cache"]
    ended = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *settings],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HOME": "/dev/null/nobody", "MPLCONFIGDIR": str(tmp_path / "mpl")},
    )
    assert ended.returncode == 0, ended.stderr
    assert "libraries keep their files in" in ended.stdout
    for words in ("Traceback", "/dev/null/nobody"):
        assert words not in ended.stderr
        assert words not in ended.stdout.partition("libraries keep their files")[2]
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
