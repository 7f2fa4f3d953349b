"""Runs of two processes on real parts: uneven shares, a shared engine, one of them killed (around
the method)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mempo.training.checkpoint_io import checkpoint_to_go_on_from
from tests.support.programs import ROOT, read_lines, run_program, wait_for_epoch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def evaluated_alone(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Any]:
    """The evaluation before training, of one process."""
    folder = tmp_path_factory.mktemp("alone")
    settings = ["experiment=debug", f"cache_dir={cache}", "trainer.max_epochs=1"]
    run_program("train.py", *settings, f"run_dir={folder}")
    return evaluated(folder)


def evaluated(run: Path) -> dict[str, Any]:
    before: dict[str, Any] = json.loads((run / "evaluation.json").read_text())["before"]
    return before


def test_lightning_20404_two_uneven_processes_use_every_trajectory_once_and_stay_equal(
    evaluated_alone: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    run_program("tests/programs/two_process_run.py", str(tmp_path), str(cache))
    assert evaluated(tmp_path) == evaluated_alone
    trajectories = read_lines(tmp_path / "trajectories.jsonl")
    assert len(trajectories) == 2 * 3 * 4  # epochs, tasks, group
    keys = Counter((line["epoch"], line["task"], line["sample"]) for line in trajectories)
    assert set(keys.values()) == {1}
    assert {line["epoch"] for line in read_lines(tmp_path / "metrics.jsonl")} == {0, 1}
    for epoch in (0, 1):
        first, second = (
            torch.load(tmp_path / f"weights-{epoch}-{rank}.pt", weights_only=True)
            for rank in (0, 1)
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    before = torch.load(tmp_path / "weights-0-0.pt", weights_only=True)
    after = torch.load(tmp_path / "weights-1-0.pt", weights_only=True)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_two_processes_share_an_engine(
    evaluated_alone: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    """Started by torchrun, for which Lightning starts no process itself."""
    run_program(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train.py",
        "experiment=debug",
        f"cache_dir={cache}",
        "trainer=ddp",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "engine.tensor_parallel=2",
        f"run_dir={tmp_path}",
    )
    assert evaluated(tmp_path) == evaluated_alone
    metrics = read_lines(tmp_path / "metrics.jsonl")
    # Half of every weight is in each process; the samples are those of the trainer's whole weights,
    # before and after an update.
    assert [line["epoch"] for line in metrics] == [0, 1]
    assert all(line["engine/mismatch_max"] < 1e-3 for line in metrics)
    trajectories = read_lines(tmp_path / "trajectories.jsonl")
    keys = Counter((line["epoch"], line["task"], line["sample"]) for line in trajectories)
    assert len(keys) == 16
    assert set(keys.values()) == {1}


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_in_one_process_ends_both_and_is_shown_first(
    cache: Path, tmp_path: Path, rank: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "tests/programs/raise_run.py", str(tmp_path), str(cache), str(rank)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    wait_for_epoch(tmp_path / "metrics.jsonl", process)
    # The pipe ends when both processes, which hold its other end, have ended.
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    first = output[output.index("Traceback") :]
    first = first[: first.index("Error: ") + 60]
    assert f"RuntimeError: broken on rank {rank}" in first, output


@pytest.mark.parametrize("killed", ["launcher", "second"])
def test_when_one_process_is_killed_the_other_ends(
    cache: Path, tmp_path: Path, killed: str
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "train.py"),
            "experiment=debug",
            "trainer=ddp",
            "trainer.accelerator=cpu",
            "trainer.devices=2",
            "trainer.max_epochs=500",
            "evaluation.enabled=false",
            f"run_dir={tmp_path}",
            f"cache_dir={cache}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    wait_for_epoch(tmp_path / "metrics.jsonl", process)
    (second,) = further_ranks(process.pid)
    os.kill(process.pid if killed == "launcher" else second, signal.SIGKILL)
    try:
        assert process.wait(timeout=60) != 0
        deadline = time.monotonic() + 60
        while is_running(second):
            assert time.monotonic() < deadline, "the second process works on"
            time.sleep(0.5)
    finally:
        for pid in (process.pid, second):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def further_ranks(launcher: int) -> list[int]:
    """The processes that the launcher started for further ranks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == launcher and b"LOCAL_RANK=1" in environment:
            found.append(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_sharded_run_goes_on_from_its_sharded_checkpoint(cache: Path, tmp_path: Path) -> None:
    """Two processes under fsdp2, from the supervised start on; an epoch, and a second one after
    the checkpoint of the first. The saved model is whole."""
    settings = [
        "experiment=debug",
        f"cache_dir={cache}",
        "trainer=fsdp2",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "trainer.checkpoint_every=1",
        "optimizer.decay_epochs=2",
        "evaluation.enabled=false",
        f"run_dir={tmp_path}",
    ]
    run_program("train.py", *settings, "trainer.max_epochs=1")
    (first,) = read_lines(tmp_path / "metrics.jsonl")
    checkpoint = tmp_path / "checkpoints" / "epoch-00001.ckpt"
    assert {"meta.pt", ".metadata"} <= {path.name for path in checkpoint.iterdir()}
    begun = load_file(tmp_path / "model" / "model.safetensors")
    output = run_program("train.py", *settings, "trainer.max_epochs=2", "resume=auto")
    assert f"going on from {checkpoint}" in output
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [line["epoch"] for line in lines] == [0, 1]
    assert lines[0] == first
    assert all(line["engine/mismatch_max"] < 1e-3 for line in lines)
    assert not list(checkpoint.parent.glob("*.tmp"))
    newest = checkpoint.with_name("epoch-00002.ckpt")
    said: list[str] = []
    assert checkpoint_to_go_on_from(tmp_path, said.append) == newest
    (newest / "__1_0.distcp").unlink()
    assert checkpoint_to_go_on_from(tmp_path, said.append) == checkpoint
    assert said == [
        f"{newest} is damaged (without __1_0.distcp): going on from the older {checkpoint}, "
        "which is whole"
    ]
    ended = load_file(tmp_path / "model" / "model.safetensors")
    assert {name: value.shape for name, value in ended.items()} == {
        name: value.shape for name, value in begun.items()
    }
    assert any(not torch.equal(ended[name], begun[name]) for name in begun)
