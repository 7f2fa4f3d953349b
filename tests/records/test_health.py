"""Each health check provoked once on hand-made records, and a healthy run that provokes none
(around the method)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from callbacks.epoch_record import EpochRecordCallback
from callbacks.health import HealthCallback
from mempo.config import HealthConfig
from mempo.records.health import CHECKS, findings
from mempo.runtime.phases import Phases
from mempo.runtime.run_files import append_lines
from tests.support.handmade import make_trajectory

SETTINGS = HealthConfig(window=2)
Record = dict[str, float]


def record(epoch: int, **changes: float) -> Record:
    """A healthy epoch, with changes written ``memory__reward_mean=0.0``."""
    healthy = {
        "epoch": float(epoch),
        "reward/mean": 0.5 + 0.01 * epoch,
        "reward/format_valid": 0.95,
        "groups/constant_share": 0.5,
        "ending/answered": 0.9,
        "ending/max_rounds": 0.1,
        "memory/reward_mean": 0.001,  # near zero by itself is no fault
        "memory/reward_std": 0.2,
        "memory/tokens_mean": 20.0 + epoch,
        "engine/mismatch_mean": 1e-6 * 10**epoch if epoch < 3 else 1e-4,  # below the floor
        "filter/none_kept_mem": 0.1,
        "filter/none_kept_full": 0.0,
    }
    return healthy | {key.replace("__", "/"): value for key, value in changes.items()}


def run(*changes: dict[str, float]) -> list[Record]:
    return [record(epoch, **one) for epoch, one in enumerate(changes)]


def test_a_healthy_run_provokes_none() -> None:
    assert findings([record(epoch) for epoch in range(20)], SETTINGS) == {}
    assert findings([record(epoch) for epoch in range(20)], HealthConfig()) == {}


ILL: dict[str, tuple[list[dict[str, float]], str]] = {
    "memory_reward_flat": (
        [{}] + 2 * [{"memory__reward_mean": 0.004, "memory__reward_std": 0.003}],
        "memory rewards have been flat near zero for 2 epochs (mean +0.004, standard deviation "
        "0.003)",
    ),
    "memory_length": (
        [{}, {}] + 2 * [{"memory__tokens_mean": 6.0}],
        # (20 + 21) / 2 = 20.5 over the first two, and 6 is less than a third of it.
        "memory length is collapsing: 6 tokens on average over the last 2 epochs, 20 over the "
        "first 2",
    ),
    "constant_groups": (
        [{}] + 2 * [{"groups__constant_share": 1.0, "reward__mean": 0.0}],
        "all groups were constant for 2 epochs (mean reward 0.00)",
    ),
    "format_valid": (
        [{}, {}, {"reward__format_valid": 0.8}, {"reward__format_valid": 0.6}],
        "format validity is falling: 70% of the trajectories over the last 2 epochs, 95% at its "
        "best",
    ),
    "mismatch": (
        [{"engine__mismatch_mean": 0.002}] * 2 + [{"engine__mismatch_mean": 0.007}] * 2,
        "the mismatch of engine and trainer is rising: 0.007 nats per token over the last 2 "
        "epochs, 0.002 over the first 2",
    ),
    "ending": (
        [{}] + 2 * [{"ending__answered": 0.1, "ending__max_rounds": 0.9}],
        "one ending dominates: 90% of the trajectories of the last 2 epochs ended with max_rounds",
    ),
    "confidence_filter": (
        [{}] + 2 * [{"filter__none_kept_mem": 0.95}],
        "the confidence filter keeps nothing: after the memory, no answer token passed "
        "scoring.threshold in 95% of the scored rounds of the last 2 epochs",
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_provoked(name: str) -> None:
    changes, words = ILL[name]
    found = findings(run(*changes), SETTINGS)
    assert list(found) == [name]
    assert found[name].startswith(words)


@pytest.mark.parametrize("name", CHECKS)
def test_one_good_epoch_of_two_is_no_finding(name: str) -> None:
    changes, _ = ILL[name]
    assert findings(run(*changes[:-1], {}), SETTINGS) == {}
    assert findings(run(*changes[-1:]), SETTINGS) == {}  # less than a window


def test_memories_that_explode_and_memories_that_are_not_written() -> None:
    longer = findings(run({}, {}, *2 * [{"memory__tokens_mean": 62.0}]), SETTINGS)
    assert longer["memory_length"].startswith("memory length is exploding: 62 tokens")
    records = run({}, {}, {}, {})
    for one in records[2:]:
        del one["memory/tokens_mean"]
    assert findings(records, SETTINGS)["memory_length"].startswith(
        "memory length is collapsing: 0 tokens"
    )
    # A run whose first epochs had no memories starts to count with the first one.
    assert "memory_length" not in findings([{"epoch": 0.0}] * 4 + run({}, {}, {}), SETTINGS)


def test_flat_rewards_name_what_the_memory_is_compared_with() -> None:
    flat = {"memory__reward_mean": 0.0, "memory__reward_std": 0.0}
    said = findings(run(flat, flat), SETTINGS)["memory_reward_flat"]
    assert "as with the history" in said
    assert "memory/p_full_mean" in said
    previous = flat | {"memory__p_previous_mean": 0.3}
    said = findings(run(previous, previous), SETTINGS)["memory_reward_flat"]
    assert "as with the one before it" in said
    assert "memory/p_previous_mean" in said
    assert "p_full" not in said


def test_what_was_not_measured_is_no_finding() -> None:
    assert findings([{"epoch": float(epoch)} for epoch in range(8)], SETTINGS) == {}


def trainer(epoch: int, *, main_process: bool = True) -> Any:
    source = SimpleNamespace(
        trajectories=[make_trajectory(sample=s, reward=0.0) for s in range(2)],
        phases=Phases(),
        staleness=0,
        record={},
        tasks=SimpleNamespace(sources=()),
    )
    return SimpleNamespace(
        current_epoch=epoch, global_step=epoch, is_global_zero=main_process, datamodule=source
    )


MODULE = cast(Any, SimpleNamespace(epoch_metrics={}, phases=Phases()))


def end_epoch(callback: HealthCallback, trainer: Any) -> None:
    EpochRecordCallback().on_train_epoch_end(trainer, MODULE)
    callback.on_train_epoch_end(trainer, MODULE)


def test_the_run_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = HealthCallback(SETTINGS, tmp_path)
    callback.on_train_start(trainer(0), MODULE)
    for epoch in range(4):
        end_epoch(callback, trainer(epoch))
        end_epoch(callback, trainer(epoch, main_process=False))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("health, epoch 2: all groups were constant for 2 epochs")


def test_a_resumed_run_knows_the_epochs_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append_lines(tmp_path / "metrics.jsonl", [{"epoch": 0, "groups/constant_share": 1.0}])
    append_lines(tmp_path / "metrics.jsonl", [{"epoch": 1, "groups/constant_share": 0.5}])
    callback = HealthCallback(SETTINGS, tmp_path)
    callback.on_train_start(trainer(1), MODULE)  # epoch 1 is done again
    end_epoch(callback, trainer(1))
    assert capsys.readouterr().out.startswith("health, epoch 2: all groups were constant")
