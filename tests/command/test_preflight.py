"""What is refused before any work is done (around the method)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mempo.command.cli import compose
from mempo.command.preflight import (
    check_accelerator,
    check_run_folder,
    check_shares,
    check_training_engine,
)
from mempo.config import Config
from mempo.runtime.errors import ConfigError
from mempo.training.checkpoint_io import check_fits
from tests.support.programs import run_program


def test_a_new_run_does_not_write_over_another(tmp_path: Path) -> None:
    def config(*overrides: str) -> Config:
        return compose("train", [*overrides], run_dir=str(tmp_path))

    check_run_folder(config())
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"run_dir=.* holds a run .*resume=auto"):
        check_run_folder(config())
    check_run_folder(config("resume=auto"))
    check_run_folder(config("ckpt_path=epoch-00001.ckpt"))
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch-00001.ckpt").touch()
    with pytest.raises(ConfigError, match=r"holds a run \(epoch-00001\.ckpt\)"):
        check_run_folder(config())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    check_accelerator(compose("train", ["trainer=cpu"]))
    with pytest.raises(ConfigError, match=r"trainer.accelerator=gpu, but torch finds no GPU"):
        check_accelerator(compose("train", ["trainer=gpu"]))


@pytest.mark.parametrize(
    ("settings", "gpus", "engines"),
    [
        (["trainer=cpu"], 0, 1),
        (["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=3"], 0, 3),
        (["trainer=ddp", "trainer.devices=3", "trainer.num_nodes=2"], 0, 6),
        (["trainer=fsdp2", "trainer.devices=8", "engine.tensor_parallel=4"], 8, 2),
        (["trainer=ddp"], 8, 8),  # devices=auto
        (["trainer=ddp", "trainer.devices=-1"], 4, 4),
        (["trainer=ddp"], 0, 1),
    ],
)
def test_every_engine_has_a_task(
    settings: list[str], gpus: int, engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    check_shares(compose("train", [*settings, f"rollout.tasks_per_epoch={engines}"]))
    if engines > 1:
        told = (
            f"tasks_per_epoch={engines - 1} is less than this run's {engines} engines, of which 1"
        )
        with pytest.raises(ConfigError, match=told):
            check_shares(compose("train", [*settings, f"rollout.tasks_per_epoch={engines - 1}"]))


@pytest.mark.parametrize("gpus", [0, 1])
def test_on_a_gpu_an_engine_sleeps_or_collects_ahead(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    both = compose("train", ["rollout.overlap=true"])
    if gpus:
        with pytest.raises(ConfigError, match=r"set engine\.sleep=false"):
            check_shares(both)
    else:
        check_shares(both)
    check_shares(compose("train", ["rollout.overlap=true", "engine.sleep=false"]))
    check_shares(compose("train", ["rollout.overlap=true", "trainer.accelerator=cpu"]))


def test_a_server_is_not_trained_with(tmp_path: Path) -> None:
    check_training_engine(compose("train"))
    served = ["engine=openai", "engine.url=http://127.0.0.1:1/v1", f"run_dir={tmp_path}/run"]
    for more in ([], ["dry_run=true"]):
        told = run_program("train.py", *served, *more, expect=2)
        assert "engine=openai cannot train: a server takes no new weights" in told
    assert not (tmp_path / "run").exists()


def test_an_evaluation_prints_no_plan(tmp_path: Path) -> None:
    arguments = ["evaluation.model_path=mempo/demonstrations/shipped", "model=tiny", "dry_run=true"]
    told = run_program("evaluate.py", *arguments, f"run_dir={tmp_path}/run", expect=2)
    assert "dry_run=true: only training prints a plan" in told
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "epoch-00001.ckpt"
    torch.save({"state_dict": {"model.a": torch.zeros(2, 3), "model.b": torch.zeros(4)}}, path)
    check_fits(path, {"model.a": torch.ones(2, 3), "model.b": torch.ones(4)})
    with pytest.raises(ConfigError, match=r"another model: 1 weights .* such as model\.b"):
        check_fits(path, {"model.a": torch.ones(2, 3), "model.b": torch.ones(5)})
    with pytest.raises(ConfigError, match=r"another model: 2 weights .* such as model\.b"):
        check_fits(path, {"model.a": torch.ones(2, 3), "model.c": torch.ones(4)})
    (tmp_path / "README.md").write_text("no checkpoint")
    with pytest.raises(ConfigError, match=r"README\.md is not a checkpoint"):
        check_fits(tmp_path / "README.md", {})
    torch.save([1], path)
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        check_fits(path, {})
    check_fits(tmp_path, {})  # a sharded one
