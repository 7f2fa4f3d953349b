"""An evaluation over several processes (specification section 9): the same table, whoever made
what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mempo.command.cli import compose
from mempo.config import Config
from mempo.demonstrations.shipped import SHIPPED
from mempo.evaluation import launch, shares
from mempo.evaluation.launch import own_command, wait_for_others
from mempo.evaluation.models import EvaluatedModel
from mempo.evaluation.shares import Share, devices_of, own_share, processes_to_launch, take_devices
from mempo.evaluation.standalone import evaluate_models
from mempo.runtime.errors import ConfigError, MempoError
from tests.support.fakes import AnsweringEngine
from tests.support.programs import ROOT, read_lines, run_program
from tests.support.small_tokenizers import make_tokenizer

FILES = ("evaluation.json", "evaluation.csv", "differences.csv", "trajectories.jsonl")
LAUNCHERS = [
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    *("SLURM_JOB_NAME", "CUDA_VISIBLE_DEVICES", shares.SHARE_VARIABLE),
]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


# Who makes what


def test_shares_are_of_all_and_of_none_twice() -> None:
    found = [Share(index, 3, index, reports=False).of("abcdefgh") for index in range(3)]
    assert found == [["a", "d", "g"], ["b", "e", "h"], ["c", "f"]]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Share(5, 8, 1, reports=False)),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, Share(0, 2, 0, reports=True)),
        (
            {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
            Share(3, 4, 1, reports=False),
        ),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, None),
        ({shares.SHARE_VARIABLE: "0/2", "RANK": "7"}, Share(0, 2, 0, reports=False)),
    ],
)
def test_launchers_say_who_a_process_is(
    environment: dict[str, str], expected: Share | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert own_share() == expected


@pytest.mark.parametrize(
    ("settings", "gpus", "expected"),
    [
        ([], 0, 1),
        ([], 8, 1),
        (["trainer.devices=auto"], 0, 1),
        (["trainer.devices=auto"], 8, 8),
        (["trainer.devices=auto", "engine.tensor_parallel=4"], 8, 2),
        (["trainer.devices=4", "engine.tensor_parallel=2"], 8, 2),
        (["trainer.devices=3"], 0, 3),
        (["trainer.devices=9"], 8, "there are 8 GPUs"),
        (["trainer.devices=3", "engine.tensor_parallel=2"], 8, "multiple"),
        (["trainer.devices=3", "trainer.num_nodes=2"], 8, "torchrun or srun"),
    ],
)
def test_how_many_processes(settings: list[str], gpus: int, expected: int | str) -> None:
    config = compose("evaluate", settings)
    if isinstance(expected, int):
        assert processes_to_launch(config, gpus) == expected
    else:
        with pytest.raises(ConfigError, match=expected):
            processes_to_launch(config, gpus)


def test_each_process_has_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [devices_of(local, 2, 4) for local in (0, 1)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-6,7")
    assert [devices_of(local, 1, 4) for local in (0, 2)] == ["4", "GPU-6"]
    take_devices(Share(6, 8, 2, reports=False), 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-6"
    take_devices(Share(6, 8, 2, reports=False), 1)  # it sees no other any more
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-6"


def test_the_command_of_a_process_names_the_folder_once() -> None:
    words = ["python3", "-X", "dev", "evaluate.py", "run_dir=a", "evaluation.tasks=3"]
    assert own_command(words) == [sys.executable, *words[1:4], words[5]]


# The same files


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """Of eight questions, half of which the model knows."""
    rows = [{"id": f"q{i}", "question": f"Is it {i}?", "answer": str(i)} for i in range(8)]
    lines = {"q": rows, "t": [{"question": "?", "answer": "I"}], "c": [{"contents": "A\nB"}]}
    for name, written in lines.items():
        text = "".join(json.dumps({"id": name, **row}) + "\n" for row in written)
        (tmp_path / f"{name}.jsonl").write_text(text)
    make_tokenizer("bytes").save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return [
        *("data=local", "evaluation.bootstrap_samples=50", "callbacks.progress_bars=false"),
        *(f"data.questions={tmp_path}/t.jsonl", f"data.heldout_questions={tmp_path}/q.jsonl"),
        *(f"data.corpus={tmp_path}/c.jsonl", f"evaluation.model_path={tmp_path}/model"),
        "evaluation.objectives=[1,2]",
    ]


class Engines:
    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.asked = 0

    def __call__(self, model: EvaluatedModel, config: Config) -> AnsweringEngine:
        return AnsweringEngine(model.conversation, self.say, self.stop_after, KeyboardInterrupt())

    def say(self, prompt: str) -> str:
        self.asked += 1
        numbers = [prompt[at + 6] for at in range(len(prompt)) if prompt.startswith("Is it ", at)]
        parts = [number if number < "4" else "?" for number in numbers]
        return f"<think>so</think><answer>{'; '.join(parts)}</answer>"


def test_parts_are_joined_to_what_one_process_writes(
    settings: Sequence[str], tmp_path: Path
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    alone, engines = Engines(), Engines()
    evaluate_models(compose("evaluate", settings, run_dir=one), alone)
    config = compose("evaluate", settings, run_dir=many)
    for index in (1, 2):
        share = Share(index, 3, index, reports=False)
        assert evaluate_models(config, engines, share=share) == {}
    assert engines.asked == 16  # two thirds of 2 × (8 + 4)
    assert sorted(path.name for path in many.glob("*.part-*")) == [
        "trajectories.part-1.jsonl",
        "trajectories.part-2.jsonl",
    ]
    evaluate_models(config, engines, share=Share(0, 3, 0, reports=True))
    assert engines.asked == alone.asked == 24
    for name in FILES:
        assert (one / name).read_bytes() == (many / name).read_bytes(), name
    assert not list(many.glob("*.part-*"))


def test_a_stopped_call_goes_on_with_other_processes(
    settings: Sequence[str], tmp_path: Path
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    evaluate_models(compose("evaluate", settings, run_dir=one), Engines())
    config = compose("evaluate", [*settings, "engine.max_num_seqs=1"], run_dir=many)
    with pytest.raises(KeyboardInterrupt):
        evaluate_models(config, Engines(stop_after=3), share=Share(1, 2, 1, reports=False))
    part = many / "trajectories.part-1.jsonl"
    kept = len(read_lines(part))
    assert 1 <= kept < 12
    with part.open("a") as file:
        file.write('{"half a li')
    last = Engines()
    evaluate_models(config, last)
    assert last.asked == 24 - kept
    for name in FILES:
        assert (one / name).read_bytes() == (many / name).read_bytes(), name


def test_who_waits_is_told_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "STALLED_SECONDS", 0.6)
    counts = iter([3, 2, 1, 0])
    wait_for_others(lambda: next(counts))
    with pytest.raises(MempoError, match=r"^2 trajectories of the other processes did not come"):
        wait_for_others(lambda: 2)


# Real processes


@pytest.mark.slow
def test_a_killed_process_ends_all_and_the_next_call_goes_on(tmp_path: Path) -> None:
    """Two engines on the CPU; the model is the one that comes with the package. What they sampled
    and one engine went on with are the files of one engine that was never stopped."""
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    arguments = [
        "evaluation.temperature=1.0",
        *(f"evaluation.model_path={SHIPPED}", "model=tiny", "evaluation.contexts=[full]"),
        *("evaluation.tasks=32", "evaluation.max_round_tokens=160", "engine.max_num_seqs=2"),
        "callbacks.progress_bars=false",
    ]
    process = subprocess.Popen(
        [sys.executable, "evaluate.py", *arguments, f"run_dir={stopped}", "trainer.devices=2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    part = stopped / "trajectories.part-1.jsonl"
    deadline = time.monotonic() + 120
    while not part.exists() or not part.read_bytes():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = children(process.pid)
    assert sorted(workers) == [0, 1]
    os.kill(workers[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert "process 1 of 2 ended with status -9" in output
    assert "the same command goes on" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers.values())
    kept = sum(len(read_lines(one)) for one in stopped.glob("*.part-*"))
    assert 1 <= kept < 32
    at_once = "engine.max_num_seqs=128"
    output = run_program("evaluate.py", *arguments, f"run_dir={stopped}", at_once)
    assert f"{kept} of 32 trajectories are in {stopped} already" in output
    assert len(read_lines(stopped / "trajectories.jsonl")) == 32
    assert not list(stopped.glob("*.part-*"))
    run_program("evaluate.py", *arguments, f"run_dir={whole}", at_once)
    for name in FILES:
        assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name


def children(parent: int) -> dict[int, int]:
    """The process of each share."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        name = f"{shares.SHARE_VARIABLE}=".encode()
        share = [one for one in environment if one.startswith(name)]
        if int(stat[1]) == parent and share:
            found[int(share[0].removeprefix(name).split(b"/")[0])] = int(folder.name)
    return found
