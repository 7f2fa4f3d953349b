"""Engines end while processes go on, and none waits for ever (specification section 10)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from mempo.config import ArchitectureConfig
from mempo.models.tiny import build_tiny_model
from mempo.training.waiting import LostProcessError, awaiting_others
from tests.support.programs import ROOT
from tests.support.small_tokenizers import make_tokenizer

PROGRAM = ROOT / "tests" / "programs" / "ending_run.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer("tags")
    architecture = ArchitectureConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
    )
    build_tiny_model(architecture, tokenizer, seed=1).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def two_processes(*arguments: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]


def outputs(processes: list[subprocess.Popen[str]]) -> list[str]:
    try:
        return [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_processes_exchange_after_an_engines_end_and_an_exception_releases_who_waits(
    folder: Path,
) -> None:
    """The first ends its engine and both exchange; the second fails while the first waits, ends its
    engine as well, and is gone."""
    processes = two_processes(str(folder), "engines")
    first, second = outputs(processes)
    assert "exchanged" in first
    assert "exchanged" in second
    assert [process.returncode for process in processes] == [1, 1]
    assert "ValueError: broken on rank 1" in second
    assert "lost: another process of this run has ended: what it said last tells why" in first
    assert "(it waited in mempo/runtime/gather.py, gather_objects)" in first


def test_a_process_waits_no_longer_than_the_setting(folder: Path) -> None:
    processes = two_processes(str(folder), "silent")
    began = time.monotonic()
    output, _ = processes[0].communicate(timeout=60)
    for process in processes:
        process.kill()
        process.wait()
    assert time.monotonic() - began < 60  # imports, and the three seconds
    assert "lost: a process waited 3 s for another one of this run, in vain" in output
    assert "raise trainer.timeout_s (it waited in" in output


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("[gloo/tcp/buffer.cc:129] Timed out waiting 5000ms for recv"), "waited 5 s"),
        (RuntimeError("Application timeout caused pair closure"), "waited 5 s"),
        (dist.DistStoreError("wait timeout after 5000ms, keys: /0"), "waited 5 s"),
        (RuntimeError("[gloo/tcp/pair.cc:537] Connection closed by peer [::1]:4"), "has ended"),
        (dist.DistNetworkError("Broken pipe"), "has ended"),
    ],
)
def test_what_torch_says_of_lost_processes(error: RuntimeError, words: str) -> None:
    with pytest.raises(LostProcessError, match=words), awaiting_others(5):
        raise error


@pytest.mark.parametrize(
    "error", [RuntimeError("Connection reset by peer"), OSError("Broken pipe"), ValueError("gloo")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    """Servers, disks and the like."""
    with pytest.raises(type(error)) as caught, awaiting_others(5):
        raise error
    assert caught.value is error
