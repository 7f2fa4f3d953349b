"""What the callbacks and their helpers write: files, loggers, lines, pictures (around the
method)."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import DataLoader

from callbacks.epoch_line import EpochLineCallback, epoch_line
from callbacks.epoch_record import EpochRecordCallback
from callbacks.held_out_evaluation import HeldOutEvaluationCallback
from callbacks.memory_distributions import MemoryDistributionsCallback, values_by_round
from callbacks.metrics_file import MetricsFileCallback
from callbacks.metrics_loggers import MetricsLoggersCallback
from callbacks.mismatch_warning import EXPECTED, MismatchWarningCallback
from callbacks.sampled_trajectories import (
    COLUMNS,
    SampledTrajectoriesCallback,
    draw,
    table_rows,
)
from callbacks.trajectories_file import TrajectoriesFileCallback
from mempo.command.cli import compose
from mempo.config import WandbConfig
from mempo.data.tasks import TaskSets
from mempo.records.trajectory_records import record_order, trajectory_record
from mempo.runtime.errors import MempoError
from mempo.runtime.phases import Phases
from mempo.runtime.progress import QuietProgress, progress_bar
from mempo.runtime.run_files import append_lines, drop_from_epoch, read_lines
from mempo.runtime.run_folder import WANDB_RUN_ID_FILE
from mempo.runtime.seeds import derive_seed
from mempo.training.loggers import build_logger
from mempo.training.run import _say
from mempo.trajectory import Trajectory
from tests.support.handmade import make_round, make_trajectory
from tests.support.servers import answering, free_port
from tests.support.wandb_file import read_history, read_table


def trajectories(epoch: int = 0) -> list[Trajectory]:
    rounds = (make_round(1), make_round(2, 4, p_mem=0.5, p_full=0.25, advantage=1.0))
    return [
        make_trajectory("t2", 0, epoch=epoch, reward=0.0, exact_match=0.0),
        make_trajectory("t1", 1, epoch=epoch, rounds=rounds),
        make_trajectory("t1", 0, epoch=epoch, rounds=rounds),
    ]


class RecordingLogger:
    def __init__(self) -> None:
        self.entries: list[tuple[dict[str, float], Any]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.entries.append((metrics, step))


def phases(**seconds: float) -> Phases:
    measured = Phases()
    measured.seconds.update(seconds)
    return measured


def stub(epoch: int = 0, *, main_process: bool = True) -> Any:
    return SimpleNamespace(
        current_epoch=epoch,
        global_step=3 * (epoch + 1),
        max_epochs=10,
        is_global_zero=main_process,
        global_rank=0 if main_process else 1,
        loggers=[RecordingLogger()],
        datamodule=SimpleNamespace(
            tasks=TaskSets([], [], {}),
            trajectories=trajectories(epoch),
            phases=phases(sync=0.25, rollout=1.0, scoring=2.0, update=0.5),
            staleness=0,
            record={},
        ),
    )


MODULE = cast(Any, SimpleNamespace(epoch_metrics={"update/loss": 0.125}, phases=Phases()))


def end_epoch(callback: pl.Callback, trainer: Any, module: Any = MODULE) -> None:
    """The hooks of an epoch's end, in the run's order."""
    EpochRecordCallback().on_train_epoch_end(trainer, module)
    callback.on_train_epoch_end(trainer, module)


def test_metrics_file_holds_every_logged_key(tmp_path: Path) -> None:
    callback = MetricsFileCallback(tmp_path / "run")
    for epoch in range(2):
        trainer = stub(epoch)
        end_epoch(callback, trainer)
        MetricsLoggersCallback().on_train_epoch_end(trainer, MODULE)
        lines = read_lines(tmp_path / "run" / "metrics.jsonl")
        assert [line["epoch"] for line in lines] == list(range(epoch + 1))
        ((logged, step),) = trainer.loggers[0].entries
        assert logged == lines[-1]
        assert step is None
    expected = {
        "reward/mean": 2 / 3,
        "update/loss": 0.125,
        "seconds/rollout": 1.0,
        "trainer/global_step": 6,
    }
    assert {key: lines[-1][key] for key in expected} == pytest.approx(expected)


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    trainer = stub(main_process=False)
    end_epoch(MetricsFileCallback(tmp_path), trainer)
    end_epoch(MetricsLoggersCallback(), trainer)
    assert list(tmp_path.iterdir()) == []
    assert trainer.loggers[0].entries == []


def test_loggers_get_every_nth_epoch_and_the_file_gets_all(tmp_path: Path) -> None:
    file, loggers = MetricsFileCallback(tmp_path), MetricsLoggersCallback(log_every_epochs=2)
    logged = []
    for epoch in range(4):
        trainer = stub(epoch)
        end_epoch(file, trainer)
        end_epoch(loggers, trainer)
        logged += [entry["epoch"] for entry, _ in trainer.loggers[0].entries]
    assert logged == [1, 3]
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 4


def test_nan_is_an_error_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    callback = MetricsFileCallback(tmp_path)
    end_epoch(callback, stub(0))
    before = callback.path.read_bytes()
    broken = cast(
        Any, SimpleNamespace(epoch_metrics={"update/loss": float("nan")}, phases=Phases())
    )
    with pytest.raises(FloatingPointError, match="update/loss is nan"):
        end_epoch(callback, stub(1), broken)
    assert callback.path.read_bytes() == before


def test_resumed_run_writes_its_epochs_once(tmp_path: Path) -> None:
    metrics, texts = MetricsFileCallback(tmp_path), TrajectoriesFileCallback(tmp_path)
    for callback in (metrics, texts):
        for epoch in range(3):
            end_epoch(callback, stub(epoch))
        with callback.path.open("a") as file:
            file.write('{"epoch": 3, "cut o')  # the process was killed here
        callback.on_train_start(stub(2), MODULE)
        end_epoch(callback, stub(2))
    assert [line["epoch"] for line in read_lines(metrics.path)] == [0, 1, 2]
    assert [line["epoch"] for line in read_lines(texts.path)] == [0] * 3 + [1] * 3 + [2] * 3


def test_trajectories_file_is_ordered_and_complete(tmp_path: Path) -> None:
    callback = TrajectoriesFileCallback(tmp_path)
    callback.on_train_epoch_end(stub(4), MODULE)
    lines = read_lines(tmp_path / "trajectories.jsonl")
    assert [(one["task"], one["sample"]) for one in lines] == [("t1", 0), ("t1", 1), ("t2", 0)]
    first = lines[0]
    assert first["epoch"] == 4
    assert first["question"] == "Who?; Where?"
    assert first["golds"] == [["Ann", "Anna"], ["Rome"]]
    assert first["metadata"] == {"hops": 2}
    assert (first["ending"], first["answer"], first["reward"]) == ("answered", "Ann; Rome", 1.0)
    assert (first["total_tokens"], first["peak_tokens"], first["policy_tokens"]) == (100, 50, 2)
    assert first["rounds"][1] == {
        "number": 2,
        "text": "round 2",
        "mem": "a note",
        "action": "search",
        "argument": "a query",
        "observation": "found nothing",
        "tool_failed": False,
        "broken_rules": [],
        "memory_tokens": 4,
        "p_full": 0.25,
        "p_mem": 0.5,
        "p_previous": None,
        "memory_reward": 0.25,
        "memory_advantage": 1.0,
    }


def test_values_never_computed_are_null() -> None:
    record = trajectory_record(make_trajectory(rounds=(make_round(1),)))
    assert record["rounds"][0]["memory_reward"] is None
    assert json.loads(json.dumps(record)) == record


def test_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_lines(path, [{"epoch": 0}])
    with path.open("a") as file:
        file.write('oops\n{"epoch": 1}\n')
    with pytest.raises(MempoError, match=r"lines\.jsonl, line 2"):
        read_lines(path)
    drop_from_epoch(tmp_path / "no_such_file", 0)


def test_epoch_line() -> None:
    record = {
        "epoch": 2,
        "reward/mean": 0.5,
        "reward/exact_match": 0.75,
        "memory/reward_mean": 0.0213,
        "tokens/total_mean": 249.4,
        "seconds/rollout": 0.61,
        "seconds/sync": 0.2,
    }
    assert epoch_line(record, 100) == (
        "epoch 3/100 | reward 0.500 | exact match 0.750 | memory reward +0.021 | tokens 249 | "
        "seconds sync 0.2 rollout 0.6"
    )
    assert epoch_line({"epoch": 0, "reward/mean": 0.5}, None) == (
        "epoch 1 | reward 0.500 | exact match – | memory reward – | tokens –"
    )


def test_epoch_line_callback_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    end_epoch(EpochLineCallback(), stub(0))
    end_epoch(EpochLineCallback(), stub(0, main_process=False))
    out = capsys.readouterr().out
    assert out.startswith("epoch 1/10 | reward 0.667 | exact match 0.667 | memory reward +0.250")
    assert out.count("\n") == 1


def test_values_by_round() -> None:
    assert values_by_round(trajectories()) == {
        ("memory_reward", 2): [0.25, 0.25],
        ("p_mem", 2): [0.5, 0.5],
        ("p_full", 2): [0.25, 0.25],
    }


def test_distributions_and_samples_need_no_wandb() -> None:
    MemoryDistributionsCallback().on_train_epoch_end(stub(0), MODULE)
    SampledTrajectoriesCallback(2, seed=0).on_train_epoch_end(stub(0), MODULE)


def test_sampled_trajectories() -> None:
    records = [trajectory_record(one) for one in trajectories(4)]
    assert draw(records, 2, seed=1) == draw(records[::-1], 2, seed=1)
    drawn = [draw(records, 1, seed=seed)[0] for seed in range(20)]
    assert {(one["task"], one["sample"]) for one in drawn} == {("t1", 0), ("t1", 1), ("t2", 0)}
    assert len(draw(records, 9, seed=0)) == 3
    rows = table_rows([records[1]])
    assert [dict(zip(COLUMNS, row, strict=True)) for row in rows][1] == {
        "epoch": 5,
        "task": "t1",
        "sample": 1,
        "question": "Who?; Where?",
        "gold": "Ann / Anna; Rome",
        "answer": "Ann; Rome",
        "ending": "answered",
        "reward": 1.0,
        "outcome_advantage": 0.5,
        "number": 2,
        "mem": "a note",
        "action": "search",
        "argument": "a query",
        "p_full": 0.25,
        "p_mem": 0.5,
        "memory_reward": 0.25,
        "memory_advantage": 1.0,
        "memory_tokens": 4,
    }
    assert len(rows) == 2


# A real trainer: the hooks come in the order that the callbacks count on.


class OneStepModule(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.epoch_metrics: dict[str, float] = {}

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).sum()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.epoch_metrics = {"update/loss": float(self.current_epoch)}
        self.phases = Phases()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class HandmadeData(pl.LightningDataModule):
    tasks = TaskSets([], [], {})

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        assert self.trainer is not None
        self.trajectories = trajectories(self.trainer.current_epoch)
        self.phases = phases(rollout=1.0)
        self.staleness = 0
        self.record: dict[str, float] = {}
        return DataLoader(cast(Any, torch.ones(2, 1)))


@pytest.fixture
def offline_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is logged in, whoever runs the tests."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))


@pytest.mark.usefixtures("offline_wandb")
def test_a_trained_run_leaves_files_and_an_offline_wandb_run_that_reads_back(
    tmp_path: Path,
) -> None:
    run = tmp_path / "a run"
    loggers = build_logger(WandbConfig(), run, {"seed": 1})
    (logger,) = loggers
    assert isinstance(logger, WandbLogger)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=loggers,
        callbacks=[
            EpochRecordCallback(),
            MetricsFileCallback(run),
            MetricsLoggersCallback(),
            TrajectoriesFileCallback(run),
            MemoryDistributionsCallback(),
            SampledTrajectoriesCallback(2, seed=0),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        reload_dataloaders_every_n_epochs=1,
        default_root_dir=run,
        log_every_n_steps=1,
    )
    trainer.fit(OneStepModule(), datamodule=HandmadeData())
    summary = dict(logger.experiment.summary)
    logger.experiment.finish()
    lines = read_lines(run / "metrics.jsonl")
    assert [(line["epoch"], line["update/loss"]) for line in lines] == [(0, 0.0), (1, 1.0)]
    assert [line["trainer/global_step"] for line in lines] == [2, 4]
    assert len(read_lines(run / "trajectories.jsonl")) == 6
    assert summary["trainer/global_step"] == 4
    assert summary["reward/mean"] == pytest.approx(2 / 3)
    (offline,) = (run / "wandb").glob("offline-run-*")
    history = read_history(offline)
    check_metrics([one for one in history if "reward/mean" in one], lines)
    check_histograms([one for one in history if "p_mem_histograms/round_2" in one])
    tables = [one["samples/trajectories"] for one in history if "samples/trajectories" in one]
    assert len(tables) == 2
    table = read_table(offline, tables[0])
    assert table["columns"] == list(COLUMNS)
    drawn = draw(
        [trajectory_record(one) for one in trajectories(0)], 2, derive_seed(0, "samples", 0, 0)
    )
    chosen = draw(drawn, 2, derive_seed(0, "samples", 0))
    assert table["data"] == table_rows(sorted(chosen, key=record_order))


def check_metrics(entries: list[dict[str, Any]], lines: list[dict[str, Any]]) -> None:
    """wandb has the numbers of metrics.jsonl, and may add keys of its own."""
    assert [{key: one[key] for key in lines[0]} for one in entries] == lines
    assert entries[0]["memory_reward_quantiles/round_2_p50"] == 0.25


def check_histograms(entries: list[dict[str, Any]]) -> None:
    """In each epoch two memories of round 2, with P_mem 0.5, P_full 0.25 and reward 0.25; forty
    bins from 0, or -1, to 1."""
    assert [(one["epoch"], one["trainer/global_step"]) for one in entries] == [(0, 2), (1, 4)]
    for one in entries:
        for key, first, width, bin_ in (
            ("p_mem", 0.0, 0.025, 20),
            ("p_full", 0.0, 0.025, 10),
            ("memory_reward", -1.0, 0.05, 25),
        ):
            found = one[f"{key}_histograms/round_2"]
            assert found["_type"] == "histogram"
            assert found["values"] == [2 * (number == bin_) for number in range(40)]
            edges = [first + width * number for number in range(41)]
            assert found["bins"] == pytest.approx(edges)


# Loggers


def test_no_logger_when_wandb_is_off(tmp_path: Path) -> None:
    assert build_logger(WandbConfig(enabled=False), tmp_path) == []
    assert build_logger(WandbConfig(mode="disabled"), tmp_path) == []


def wandb_mode(config: WandbConfig, run: Path) -> str | None:
    (logger,) = build_logger(config, run)
    assert isinstance(logger, WandbLogger)
    return cast("str | None", logger._wandb_init["mode"])


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_is_offline_unless_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wandb_mode(WandbConfig(), tmp_path) == "offline"
    with pytest.raises(MempoError, match=r"logger\.mode=offline"):
        build_logger(WandbConfig(mode="online"), tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with answering(lambda *_: None) as (url, _):
        monkeypatch.setenv("WANDB_BASE_URL", url)
        assert wandb_mode(WandbConfig(), tmp_path) == "online"
        assert wandb_mode(WandbConfig(mode="offline"), tmp_path) == "offline"
        monkeypatch.setenv("WANDB_MODE", "offline")
        assert wandb_mode(WandbConfig(), tmp_path) == "offline"


@pytest.mark.usefixtures("offline_wandb")
def test_a_key_without_a_network_is_logged_offline_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    begun = time.monotonic()
    for mode in ("auto", "online"):
        assert wandb_mode(WandbConfig(mode=mode), tmp_path) == "offline"
        assert "does not answer: this run is logged offline" in capsys.readouterr().out
    assert time.monotonic() - begun < 20


@pytest.mark.usefixtures("offline_wandb")
def test_wandbs_own_variables_mean_what_they_mean_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(config: WandbConfig) -> tuple[object, object, object]:
        (logger,) = build_logger(config, tmp_path / "run")
        assert isinstance(logger, WandbLogger)
        return logger._wandb_init["project"], logger._wandb_init["name"], logger.save_dir

    assert made(WandbConfig()) == ("mempo", "run", str(tmp_path / "run"))
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    monkeypatch.setenv("WANDB_NAME", "seven")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    assert made(WandbConfig()) == ("theirs", "seven", str(tmp_path / "elsewhere"))
    # What the configuration says wins.
    assert made(WandbConfig(project="ours", name="six"))[:2] == ("ours", "six")
    monkeypatch.setenv("WANDB_DISABLED", "true")
    assert build_logger(WandbConfig(), tmp_path) == []


@pytest.mark.usefixtures("offline_wandb")
def test_a_resumed_run_goes_on_with_its_wandb_run_and_a_new_one_does_not(tmp_path: Path) -> None:
    def run_id(*, resumed: bool) -> str:
        (logger,) = build_logger(WandbConfig(), tmp_path, resumed=resumed)
        assert isinstance(logger, WandbLogger)
        assert logger._wandb_init["resume"] == "allow"
        return str(logger.version)

    first = run_id(resumed=False)
    assert run_id(resumed=True) == first
    second = run_id(resumed=False)
    assert second != first
    assert run_id(resumed=True) == second


@pytest.mark.usefixtures("offline_wandb")
def test_of_four_slurm_tasks_one_names_the_wandb_run_and_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "mempo")
    names = []
    for task in range(4):
        monkeypatch.setenv("SLURM_PROCID", str(task))
        (logger,) = build_logger(WandbConfig(), tmp_path)
        _say(f"of task {task}")
        names.append(str(logger.version))
        assert (tmp_path / WANDB_RUN_ID_FILE).read_text() == f"{names[0]}\n"
    assert len(set(names)) == 4  # the others' are theirs alone: they have no run
    assert capsys.readouterr().out == "of task 0\n"


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quiet_progress_prints_at_most_every_ten_seconds() -> None:
    stream, now = io.StringIO(), [0.0]
    bar = QuietProgress("rollout", 40, stream, clock=lambda: now[0])
    for second in range(1, 25):
        now[0] = float(second)
        bar.advance(1, tokens=50)
    assert stream.getvalue() == "rollout: 10/40, 50 tokens/s\nrollout: 20/40, 50 tokens/s\n"


def test_progress_on_a_terminal_and_disabled() -> None:
    terminal, silent = Terminal(), Terminal()
    with progress_bar("scoring", 3, stream=terminal) as bar:
        bar.advance(2, tokens=10)
    assert "scoring" in terminal.getvalue()
    with progress_bar("scoring", 3, enabled=False, stream=silent) as bar:
        bar.advance()
    assert silent.getvalue() == ""


@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [
        ([], "float32"),
        (["model.dtype=bfloat16"], "bfloat16"),
        (["engine.dtype=bfloat16"], "bfloat16"),
        (["engine.dtype=float32", "model.dtype=bfloat16"], "bfloat16"),
    ],
)
def test_a_mismatch_beyond_the_precision_is_said_once(
    overrides: list[str], dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = MismatchWarningCallback(compose("train", overrides))
    assert callback.dtype == dtype
    limit = EXPECTED[dtype]
    trainer = cast(Any, SimpleNamespace(is_global_zero=True, current_epoch=4))
    for mismatch in (None, limit, 2 * limit, 3 * limit):
        metrics = {} if mismatch is None else {"engine/mismatch_mean": mismatch}
        callback.on_train_epoch_end(trainer, cast(Any, SimpleNamespace(epoch_metrics=metrics)))
        printed = capsys.readouterr().out
        assert printed.startswith("warning: in epoch 5") == (mismatch == 2 * limit)
        if printed:
            assert f"differ by {2 * limit:.2g} on average" in printed
            assert "engine.dtype" in printed


@pytest.mark.parametrize("text", ["null", '{"before": {"exact_ma', ""])
def test_evaluations_that_were_spoiled_are_named_when_a_run_goes_on(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    config = compose("train", ["experiment=debug"], run_dir=tmp_path)
    trainer: Any = pl.Trainer(accelerator="cpu", barebones=True)
    trainer.datamodule = SimpleNamespace(before_collecting=[], when_finished=[])
    callback = HeldOutEvaluationCallback(config)
    callback.on_fit_start(trainer, pl.LightningModule())  # a new run, which writes its own
    trainer.ckpt_path = "of the run"
    with pytest.raises(MempoError, match=rf"{path}: .*(repair|remove)"):
        callback.on_fit_start(trainer, pl.LightningModule())
