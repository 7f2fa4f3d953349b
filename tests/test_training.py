"""The whole road on real parts, small: what a run leaves, in one and in two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from wandb_file import read_history

from mempo import metric_keys

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PROGRAM_SECONDS = 600


def run_program(program: str, *arguments: str, expect: int = 0) -> str:
    """Runs a program of the project and returns its output, standard output last."""
    done = subprocess.run(
        [sys.executable, str(ROOT / program), *arguments],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        cwd=ROOT,
        env={**os.environ, "WANDB_MODE": "offline"},
    )
    assert done.returncode == expect, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stderr + done.stdout


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, str]:
    """One run of the two-minute experiment, with wandb on."""
    folder = tmp_path_factory.mktemp("run")
    output = run_program(
        "train.py", "experiment=debug", "logger=wandb", f"run_dir={folder}", f"cache_dir={cache}"
    )
    return folder, output


def test_a_run_leaves_its_files(run: tuple[Path, str]) -> None:
    folder, output = run
    assert output.rstrip().endswith(f"written to {folder}")
    assert "not in the cache, training it now" in output
    metrics = read_lines(folder / "metrics.jsonl")
    assert [line["epoch"] for line in metrics] == [0, 1]
    for line in metrics:
        assert {"reward/mean", "update/loss", "engine/mismatch_mean", "tokens/total_mean"} <= {
            *line
        }
        assert {f"seconds/{phase}" for phase in ("sync", "rollout", "scoring", "update")} <= {*line}
        # SPEC 10: the engine samples from the trainer's weights.
        assert line["engine/mismatch_max"] < 1e-3
    trajectories = read_lines(folder / "trajectories.jsonl")
    assert Counter(line["epoch"] for line in trajectories) == {0: 8, 1: 8}
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert set(evaluation) == {"before", "after"}
    for entry in evaluation.values():
        assert set(entry["contexts"]) == {"memory", "full"}
        assert entry["exact_match"] == entry["contexts"]["memory"]["exact_match"]
    assert list((folder / "checkpoints").glob("*.ckpt"))
    assert list((folder / "wandb").glob("offline-run-*"))


def test_a_run_logs_what_the_docs_define(run: tuple[Path, str]) -> None:
    """``mempo.metric_keys`` is what docs/metrics.md defines (test_metrics_page.py)."""
    folder, _ = run
    lines = read_lines(folder / "metrics.jsonl")
    logged = {metric_keys.pattern_of(key) for line in lines for key in line}
    assert logged <= set(metric_keys.RECORD_KEYS)
    for line in lines:
        assert set(metric_keys.ALWAYS) <= set(line)
    # What may be missing by chance of what so young a model writes; KL and importance are off.
    assert set(metric_keys.RECORD_KEYS) - logged <= {
        *metric_keys.WITH_MEMORIES,
        *metric_keys.WITH_SCORES,
        *metric_keys.WITH_MEMORY_WEIGHT,
        *metric_keys.WITH_SWITCHES,
    }
    (offline,) = (folder / "wandb").glob("offline-run-*")
    shown = {metric_keys.pattern_of(key) for entry in read_history(offline) for key in entry}
    own = {key for key in shown if key.startswith("_")}  # wandb's own: step, time
    assert shown - own <= {*metric_keys.RECORD_KEYS, *metric_keys.WANDB_KEYS}
    assert logged | {"samples/trajectories"} <= shown


def test_the_trained_model_opens_with_transformers(run: tuple[Path, str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = run
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    ids = tokenizer("<mem>a</mem>", return_tensors="pt").input_ids
    assert torch.isfinite(model(ids).logits).all()
    checkpoint = torch.load(
        next((folder / "checkpoints").glob("last*.ckpt")), weights_only=True, map_location="cpu"
    )
    for name, value in model.named_parameters():
        assert torch.equal(checkpoint["state_dict"][f"model.{name}"], value)


def test_torchtitan_3602_two_evaluations_give_one_table(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    folder, _ = run
    tables = []
    for name in ("one", "two"):
        run_program(
            "evaluate.py",
            "experiment=debug",
            f"evaluation.model_path={folder}",
            f"run_dir={tmp_path / name}",
            f"cache_dir={cache}",
        )
        tables.append(json.loads((tmp_path / name / "evaluation.json").read_text()))
    assert tables[0] == tables[1]
    after = json.loads((folder / "evaluation.json").read_text())["after"]["contexts"]
    assert tables[0] == {f"{folder}/model/{context}": entry for context, entry in after.items()}


def test_lightning_20404_two_uneven_processes_use_every_trajectory_once_and_stay_equal(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    run_program("tests/two_process_run.py", str(tmp_path), str(cache))
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


def test_lightning_9502_lightning_21492_a_resumed_run_collects_each_epoch_once(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    output = run_program("tests/resume_run.py", str(tmp_path), str(cache))
    assert json.loads(output.splitlines()[-1]) == [0, 1]
    assert [line["epoch"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0, 1]
    counts = Counter(line["epoch"] for line in read_lines(tmp_path / "trajectories.jsonl"))
    assert counts == {0: 8, 1: 8}
    states = [
        torch.load(path, weights_only=True, map_location="cpu")
        for path in (tmp_path / "checkpoints").glob("last*.ckpt")
    ]
    assert max(state["epoch"] for state in states) == 1


def test_an_interrupt_leaves_finished_epochs_readable(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "train.py"),
            "experiment=debug",
            "trainer.max_epochs=500",
            "evaluation.enabled=false",
            f"run_dir={tmp_path}",
            f"cache_dir={cache}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )
    metrics = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + PROGRAM_SECONDS / 2
    while not metrics.exists() or not metrics.read_bytes():
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < deadline
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, None), output
    assert [line["epoch"] for line in read_lines(metrics)] == list(range(len(read_lines(metrics))))
    assert read_lines(tmp_path / "trajectories.jsonl")


def test_a_misspelled_override_is_named() -> None:
    output = run_program("train.py", "rollout.group_sise=4", expect=1)
    assert "group_sise" in output


def test_a_group_of_one_is_refused_with_a_remedy() -> None:
    output = run_program("train.py", "rollout.group_size=1", expect=2)
    assert "rollout.group_size=1" in output
    assert "at least 2" in output
    assert "Traceback" not in output


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    output = run_program(
        "train.py",
        "model=pretrained",
        f"model.path={tmp_path}/nothing",
        "sft.enabled=false",
        f"run_dir={tmp_path}",
        expect=2,
    )
    assert "model.path=" in output
    assert "config.json" in output


def test_dry_run_of_7b_needs_neither_gpu_nor_download() -> None:
    output = run_program("train.py", "model=qwen2_5_7b", "trainer=fsdp2", "dry_run=true")
    assert "7,615,616,512" in output or "7.6" in output
