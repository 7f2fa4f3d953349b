"""The whole road on real parts, small: what a run leaves, and how it goes on (around the
method)."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mempo.forgetting.__main__ import main as forgetting
from mempo.records import metric_names
from scripts import kill_and_resume
from tests.support.docs_examples import commands, example
from tests.support.programs import (
    ROOT,
    interruptible,
    read_lines,
    run_program,
    wait_for_checkpoint,
)
from tests.support.wandb_file import read_history

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, str]:
    """One run of the two-minute experiment, with wandb on and without a C++ compiler, which torch
    would look for where nothing that it compiled before is kept."""
    folder = tmp_path_factory.mktemp("run")
    settings = ["experiment=debug", "logger=wandb", f"run_dir={folder}", f"cache_dir={cache}"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CXX", str(folder / "no_compiler"))
        environment.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        output = run_program("train.py", *settings)
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
    """``mempo.records.metric_names`` is what docs/metrics.md defines (test_metric_names.py)."""
    folder, _ = run
    lines = read_lines(folder / "metrics.jsonl")
    logged = {metric_names.pattern_of(key) for line in lines for key in line}
    assert logged <= set(metric_names.RECORD_KEYS)
    for line in lines:
        assert set(metric_names.ALWAYS) <= set(line)
    # What may be missing by chance of what so young a model writes; KL and importance are off.
    assert set(metric_names.RECORD_KEYS) - logged <= {
        *metric_names.WITH_MEMORIES,
        *metric_names.WITH_SCORES,
        *metric_names.WITH_MEMORY_WEIGHT,
        *metric_names.WITH_SWITCHES,
        *metric_names.WITH_PREVIOUS,
        *metric_names.WITH_SOURCES,
        *metric_names.WITH_JUDGE,
        *metric_names.WITH_FUNCTIONS,
    }
    (offline,) = (folder / "wandb").glob("offline-run-*")
    shown = {metric_names.pattern_of(key) for entry in read_history(offline) for key in entry}
    own = {key for key in shown if key.startswith("_")}  # wandb's own: step, time
    assert shown - own <= {*metric_names.RECORD_KEYS, *metric_names.WANDB_KEYS}
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


def test_a_run_that_was_stopped_behind_its_last_epoch_does_what_it_owes(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    """Model and last evaluation are gone, as after a kill while they were made."""
    whole, folder = run[0], tmp_path / "run"
    shutil.copytree(whole, folder, symlinks=True)
    shutil.rmtree(folder / "model")
    results = json.loads((folder / "evaluation.json").read_text())
    del results["after"]
    (folder / "evaluation.json").write_text(json.dumps(results))
    run_program(
        *("train.py", "experiment=debug", "logger=wandb", f"run_dir={folder}", "resume=auto"),
        f"cache_dir={cache}",
    )
    assert (folder / "evaluation.json").read_text() == (whole / "evaluation.json").read_text()
    assert read_lines(folder / "metrics.jsonl") == read_lines(whole / "metrics.jsonl")
    saved, again = (load_file(at / "model" / "model.safetensors") for at in (whole, folder))
    assert saved.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in saved.items())


def test_a_run_that_is_killed_while_it_writes_a_checkpoint_ends_as_one_that_was_left_alone(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    """Or right behind it; scripts/kill_and_resume.py goes through every stage, many times."""
    shutil.copytree(cache, tmp_path / "killed-cache")
    settings, stage = list(kill_and_resume.SETTINGS), kill_and_resume.STAGES["checkpoint"]
    seen = kill_and_resume.Seen(tmp_path, "killed")
    assert kill_and_resume.kill_once(seen, settings, stage, 0.01, random.Random(0)) is not None
    kill_and_resume.run_to_end(seen, settings)
    assert list(kill_and_resume.differences(run[0], seen.run)) == []


def test_a_run_whose_last_checkpoint_is_cut_off_goes_on_from_the_older_one(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    """Its last epoch, model and last evaluation are made again: what was made behind the damaged
    one counts no longer."""
    whole, folder = run[0], tmp_path / "run"
    shutil.copytree(whole, folder, symlinks=True)
    older, newest = (folder / "checkpoints" / f"epoch-0000{number}.ckpt" for number in (1, 2))
    newest.write_bytes(newest.read_bytes()[:100_000])
    (folder / "model" / "model.safetensors").write_bytes(b"of another run")
    output = run_program(
        *("train.py", *kill_and_resume.SETTINGS, f"run_dir={folder}", "resume=auto"),
        f"cache_dir={cache}",
    )
    assert (
        f"{newest} is damaged (cut off, or not a checkpoint): going on from the older {older}"
        in (output)
    )
    assert list(kill_and_resume.differences(whole, folder)) == []


_DIES = '''
import os
import signal

from lightning.pytorch.callbacks import Callback

from mempo.retrieval.base import RetrievalError


def unreachable(*_):
    raise RetrievalError("connection refused")


def stopped(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    return []


class Dies(Callback):
    """The retriever does what it is told with the first call of the last evaluation."""

    def __init__(self, how):
        self.how = {"unreachable": unreachable, "stopped": stopped}[how]

    def on_fit_start(self, trainer, pl_module):
        if trainer.ckpt_path is not None:  # the evaluation is owed
            self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer, pl_module):
        for retriever in trainer.datamodule.tasks.retrievers.values():
            retriever.search = retriever.open_page = self.how
'''


def test_an_evaluation_that_fails_costs_no_model(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    """The retriever dies in the last evaluation; the run that makes up for it is stopped in it; the
    next one ends. Nothing is learnt, so that both evaluations must give the same figures."""
    from transformers import AutoModelForCausalLM

    (tmp_path / "dies.py").write_text(_DIES)
    folder = tmp_path / "run"
    arguments = (
        *(str(ROOT / "train.py"), "experiment=debug", "optimizer.learning_rate=1e-12"),
        *("trainer.max_epochs=1", f"run_dir={folder}", f"cache_dir={cache}"),
    )
    dies = ("+callbacks.more.dies._target_=dies.Dies", "+callbacks.more.dies.how=")
    output = run_program(*arguments, dies[0], f"{dies[1]}unreachable", expect=2, folder=tmp_path)
    assert "more than retriever.max_tool_error_rate=0.2 allows" in output
    assert "connection refused" in output
    assert "go on from epoch-00001.ckpt with\n  python train.py " in output
    assert f"run_dir={folder} resume=auto" in output
    before = json.loads((folder / "evaluation.json").read_text())
    assert set(before) == {"before"}
    assert before["before"]["tool_calls"] > 0
    lines = (folder / "metrics.jsonl").read_bytes()
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    start = load_file(next(cache.glob("sft-*")) / "model.safetensors")
    weights = dict(model.named_parameters())
    for name, value in start.items():
        torch.testing.assert_close(weights[name].detach(), value, atol=1e-11, rtol=0)

    dies = (dies[0], f"{dies[1]}stopped")
    output = run_program(*arguments, *dies, "resume=auto", expect=143, folder=tmp_path)
    assert f"run_dir={folder} resume=auto" in output
    assert set(json.loads((folder / "evaluation.json").read_text())) == {"before"}
    saved = (folder / "model" / "model.safetensors").stat()

    run_program(*arguments, "resume=auto", folder=tmp_path)
    results = json.loads((folder / "evaluation.json").read_text())
    assert results == {**before, "after": before["before"]}
    assert (folder / "model" / "model.safetensors").stat() == saved  # it was owed no longer
    assert (folder / "metrics.jsonl").read_bytes() == lines


def test_the_callback_of_the_docs_ends_a_run_that_is_started_anywhere(
    cache: Path, tmp_path: Path
) -> None:
    """docs/callbacks.md, from its file: the limit is passed at once, so one epoch of two is run.
    It is trained on the reward of docs/rewards.md."""
    (tmp_path / "my_rewards.py").write_text(example("rewards.md", "python"))
    (tmp_path / "my_callbacks.py").write_text(example("callbacks.md", "python"))
    group = tmp_path / "my_conf" / "callbacks"
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text(example("callbacks.md", "yaml"))
    (_, from_a_file) = commands("callbacks.md")
    run_program(
        str(ROOT / "train.py"),
        *from_a_file,
        "experiment=debug",
        "evaluation.enabled=false",
        "callbacks.more.stop.key=rollout/trajectories",
        "callbacks.more.stop.limit=7",
        *commands("rewards.md")[0],
        "run_dir=a_run",
        f"cache_dir={cache}",
        folder=tmp_path,
    )
    lines = read_lines(tmp_path / "a_run" / "metrics.jsonl")
    assert [(line["epoch"], line["rollout/trajectories"]) for line in lines] == [(0, 8.0)]
    for one in read_lines(tmp_path / "a_run" / "trajectories.jsonl"):
        gold = "; ".join(golds[0] for golds in one["golds"])
        fuzzy = SequenceMatcher(None, (one["answer"] or "").lower(), gold.lower()).ratio()
        assert one["metrics"]["my_rewards.fuzzy"] == fuzzy
        assert one["reward"] == (fuzzy if one["format_valid"] else 0.0)
    assert (tmp_path / "a_run" / "model" / "config.json").is_file()


def test_a_model_of_ones_own_is_trained(run: tuple[Path, str], tmp_path: Path) -> None:
    """A folder as it comes, in the precision and with the recomputation that ``pretrained`` has,
    beside a frozen reference. The entropy is trained as well, since groups may be constant."""
    start = run[0] / "model"
    run_program(
        "train.py",
        "experiment=debug",
        "model=pretrained",
        f"model.path={start}",
        "optimizer.learning_rate=1e-3",
        "loss.kl_coefficient=0.1",
        "loss.entropy_coefficient=0.01",
        "sft.enabled=false",
        "evaluation.enabled=false",
        "trainer.max_epochs=1",
        f"run_dir={tmp_path}",
    )
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert line["engine/mismatch_mean"] < 0.02  # bfloat16
    before, after = (
        load_file(folder / "model.safetensors") for folder in (start, tmp_path / "model")
    )
    assert before.keys() == after.keys()
    moved = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert 1e-4 < moved < 0.01  # one step of AdamW moves a weight by its learning rate


def test_torchtitan_3602_two_evaluations_give_one_table(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    """One model alone, then two models after each other in one process, then that call gone on
    with as if it had been killed: each time the figures that training gave."""
    folder, _ = run
    (start,) = cache.glob("sft-*")
    trained = json.loads((folder / "evaluation.json").read_text())
    settings = ["experiment=debug", f"cache_dir={cache}"]
    one, two = tmp_path / "one", tmp_path / "two"
    output = run_program("evaluate.py", f"evaluation.model_path={folder}", f"run_dir={one}")
    assert f"settings of {folder}\n" in output
    after = trained["after"]["contexts"]
    assert json.loads((one / "evaluation.json").read_text()) == {
        f"{folder}/model/{context}": entry for context, entry in after.items()
    }
    both = [*settings, f"evaluation.models={{rl: {folder}, sft: {start}}}", f"run_dir={two}"]
    output = run_program("evaluate.py", *both)
    assert "Paired differences on the same tasks" in output
    assert output.rstrip().endswith(f"written to {two}")
    assert json.loads((two / "evaluation.json").read_text()) == {
        f"{name}/{context}": entry
        for name, stage in (("rl", "after"), ("sft", "before"))
        for context, entry in trained[stage]["contexts"].items()
    }
    names = ("evaluation.json", "evaluation.csv", "differences.csv", "trajectories.jsonl")
    whole = {name: (two / name).read_bytes() for name in names}
    lines = whole["trajectories.jsonl"].splitlines(keepends=True)
    assert len(lines) == 2 * 2 * 4  # models, contexts, tasks
    (two / "trajectories.jsonl").write_bytes(b"".join(lines[:10]) + lines[10][:50])
    (two / "evaluation.json").unlink()
    assert f"10 of 16 trajectories are in {two} already" in run_program("evaluate.py", *both)
    assert {name: (two / name).read_bytes() for name in names} == whole
    forgetting([str(two)])
    groups = json.loads((two / "forgetting.json").read_text())["groups"]
    assert [(one["model"], one["context"]) for one in groups] == [
        ("rl", "memory"),
        ("rl", "full"),
        ("sft", "memory"),
        ("sft", "full"),
    ]
    assert {one["trajectories"] for one in groups} == {4}


def test_lightning_9502_lightning_21492_a_resumed_run_equals_one_that_was_not_broken_off(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    output = run_program("tests/programs/resume_run.py", str(tmp_path), str(cache))
    # The second epoch was broken off in its update, so it is collected again, and once only.
    assert json.loads(output.splitlines()[-1]) == {"straight": [0, 1], "resumed": [0, 1, 1]}
    folders = [tmp_path / name for name in ("straight", "resumed")]
    measured = ("seconds/", "peak_gib/")
    straight, resumed = (
        [
            {key: value for key, value in line.items() if not key.startswith(measured)}
            for line in read_lines(folder / "metrics.jsonl")
        ]
        for folder in folders
    )
    assert [line["epoch"] for line in straight] == [0, 1]
    assert straight == resumed
    lines = [(folder / "trajectories.jsonl").read_text() for folder in folders]
    assert lines[0] == lines[1]
    first, second = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
        for folder in folders
    )
    assert first["epoch"] == second["epoch"] == 1
    assert all(torch.equal(first["state_dict"][k], v) for k, v in second["state_dict"].items())
    states = [one["optimizer_states"][0]["state"] for one in (first, second)]
    assert states[0].keys() == states[1].keys() != set()
    for key, state in states[0].items():
        assert all(torch.equal(value, states[1][key][name]) for name, value in state.items())
    assert first["lr_schedulers"] == second["lr_schedulers"]
    names = {path.name for path in (folders[1] / "checkpoints").iterdir()}
    assert names == {"epoch-00001.ckpt", "epoch-00002.ckpt", "last.ckpt", "made.json"}


def test_rollouts_ahead_are_one_update_old_and_weighted(
    run: tuple[Path, str], cache: Path, tmp_path: Path
) -> None:
    run_program(
        "train.py",
        "experiment=debug",
        "rollout.overlap=true",
        "evaluation.enabled=false",
        "trainer.max_epochs=3",
        f"run_dir={tmp_path}",
        f"cache_dir={cache}",
    )
    metrics = read_lines(tmp_path / "metrics.jsonl")
    assert [line["engine/staleness"] for line in metrics] == [0.0, 1.0, 1.0]
    # The first epoch samples from the trainer's own weights, the others from one update before.
    assert metrics[0]["update/importance_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics[0]["engine/mismatch_max"] < 1e-3 < metrics[1]["engine/mismatch_max"]
    counts = Counter(line["epoch"] for line in read_lines(tmp_path / "trajectories.jsonl"))
    assert counts == {0: 8, 1: 8, 2: 8}


@pytest.mark.parametrize(
    ("stop", "code", "cause"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_stopped_run_says_how_to_go_on_and_does(
    run: tuple[Path, str], cache: Path, tmp_path: Path, stop: signal.Signals, code: int, cause: str
) -> None:
    arguments = ["experiment=debug", "evaluation.enabled=false", f"cache_dir={cache}"]
    process = subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "train.py"),
            *arguments,
            "trainer.max_epochs=500",
            f"run_dir={tmp_path}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        preexec_fn=interruptible,
    )
    metrics = tmp_path / "metrics.jsonl"
    wait_for_checkpoint(tmp_path, process)
    process.send_signal(stop)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert f"stopped by {cause}" in output
    assert f"run_dir={tmp_path} resume=auto" in output
    finished = [line["epoch"] for line in read_lines(metrics)]
    assert finished == list(range(len(finished)))
    assert read_lines(tmp_path / "trajectories.jsonl")
    if stop is signal.SIGTERM:
        output = run_program(
            "train.py",
            *arguments,
            f"trainer.max_epochs={len(finished) + 1}",
            "optimizer.decay_epochs=500",  # the schedule stays
            f"run_dir={tmp_path}",
            "resume=auto",
        )
        assert f"going on from {tmp_path}/checkpoints/" in output
        assert [line["epoch"] for line in read_lines(metrics)] == [*finished, len(finished)]


def test_what_is_typed_wrong_gets_a_sentence_and_leaves_no_folder() -> None:
    before = sorted((ROOT / "runs").glob("*/*"))
    for arguments, expected in (
        (["rollout.group_sise=4"], "did you mean rollout.group_size?"),
        (["algoritm=grpo"], "did you mean algorithm?"),
        (["algorithm=mempoo"], "mempo_reference"),
        (["--experiment", "debug"], "written without dashes, as experiment=debug"),
        (["data=local", "data.questions=q.jsonl", "data.corpus=no.jsonl"], "data.corpus=no.jsonl"),
        (["+callbacks.more.a._target_=no.B"], "callbacks.more.a._target_=no.B: there is no module"),
    ):
        output = run_program("train.py", *arguments, expect=2)
        assert expected in output
        assert "Traceback" not in output
        assert "HYDRA_FULL_ERROR" not in output
    assert sorted((ROOT / "runs").glob("*/*")) == before


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
