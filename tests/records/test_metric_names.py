"""The list of logged keys, the page that defines them, what is logged, and who reads it (around
the method)."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import torch

from callbacks import epoch_line
from callbacks.memory_distributions import histograms, values_by_round
from callbacks.sampled_trajectories import KEY
from mempo.command.cli import compose
from mempo.config import HealthConfig
from mempo.inspect import curves
from mempo.judging.names import JUDGE_METRICS
from mempo.learning.loss import LossInputs, policy_loss
from mempo.learning.rewards import score_answer
from mempo.plots import dashboard, pictures
from mempo.records import health, metric_names
from mempo.records.epoch_metrics import collect
from mempo.training.update_sums import TOKEN_MEANS
from tests.support.handmade import make_round, make_trajectory

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
LOGGED = {*metric_names.RECORD_KEYS, *metric_names.WANDB_KEYS}


def test_the_page_defines_what_is_logged_and_nothing_else() -> None:
    rows = re.findall(r"^\| `([^` ]+)` \|(.*)\|$", PAGE, flags=re.MULTILINE)
    names = [name for name, _ in rows if name.count("/") or name == "epoch"]
    assert len(names) == len(set(names))
    assert set(names) == LOGGED
    for name, cells in rows:
        if name in LOGGED:
            # What it is, unit, where computed, healthy, otherwise.
            assert len(cells.split(" | ")) == 5, name
            assert all(cell.strip() for cell in cells.split("|")), name


def test_the_page_names_files_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    files = set(re.findall(r"`((?:mempo|callbacks)/[\w/]+\.py)`", PAGE))
    assert len(files) > 5
    assert [name for name in files if not (root / name).is_file()] == []


def test_the_page_names_the_thresholds_of_the_health_checks() -> None:
    part = PAGE[PAGE.index("## What the run says by itself") :]
    named = set(re.findall(r"`([a-z_]+)`", part))
    settings = {one.name for one in dataclasses.fields(HealthConfig)}
    assert settings - {"enabled"} <= named
    rows = re.findall(r"^\| (?!it says|-)(.+?) \| .+ \| `(.+)` \|$", part, flags=re.MULTILINE)
    assert len(rows) == len(health.CHECKS)


def test_patterns() -> None:
    assert metric_names.pattern_of("memory_reward_by_round/round_12") == (
        "memory_reward_by_round/round_<k>"
    )
    assert metric_names.pattern_of("p_mem_quantiles/round_2_p10") == "p_mem_quantiles/round_<k>_p10"
    assert metric_names.pattern_of("reward/f1") == "reward/f1"
    assert metric_names.pattern_of("reward/my_rewards.fuzzy") == "reward/<function>"
    assert metric_names.pattern_of("f1_by_source/a/round_1 b") == "f1_by_source/<source>"


def test_trajectories_log_the_listed_keys() -> None:
    scored = make_round(2, 4, p_mem=0.5, p_full=0.25, advantage=1.0)
    scored.kept_mem, scored.kept_full = 0.5, 1.0
    scored.p_previous = 0.125  # scoring.baseline=previous has it instead of P_full
    trajectory = make_trajectory(rounds=(make_round(1, 3), scored))
    trajectory.metrics = score_answer("Ann", trajectory.task)
    trajectory.metrics |= dict.fromkeys(JUDGE_METRICS, 1.0) | {"my_rewards.fuzzy.length": 3.0}
    collected = collect([trajectory], ("handmade", "other"))
    found = {metric_names.pattern_of(key) for key in collected.result()}
    elsewhere = ("update/", "engine/", "seconds/", "peak_gib/", "trainer/")
    assert found == {
        key for key in metric_names.RECORD_KEYS if key != "epoch" and not key.startswith(elsewhere)
    }
    only_wandb = {
        metric_names.pattern_of(key) for key in histograms([values_by_round([trajectory])])
    }
    assert only_wandb | {KEY} == set(metric_names.WANDB_KEYS)


def test_the_loss_logs_the_listed_keys_with_every_switch_on() -> None:
    switches = ("kl_coefficient=0.1", "entropy_coefficient=0.1", "importance_cap=2")
    config = compose("train", [f"loss.{switch}" for switch in switches]).loss
    one = torch.tensor([-0.5])
    mask, weights = torch.tensor([1]), torch.tensor([1.0])
    _, sums = policy_loss(LossInputs(one, one, one, mask, weights, one, one, one), config)
    assert set(sums) - set(TOKEN_MEANS) == {"tokens", "policy_loss", "mismatch_max"}
    logged = {TOKEN_MEANS[key] for key in sums if key in TOKEN_MEANS}
    assert logged | {"update/gradient_norm", "engine/mismatch_max"} == {
        *metric_names.WITH_AN_UPDATE,
        *metric_names.WITH_SWITCHES,
    }


def test_everything_that_is_read_is_logged() -> None:
    """A reader of a key that was renamed would show nothing, without an error."""
    read = {key for _, key, _ in epoch_line._COLUMNS}
    read |= {key for panel in curves.PANELS for _, key in panel.keys}
    read |= {key for _, key in pictures.PANELS} | {f"{pictures.BY_ROUND}/round_<k>"}
    read |= {dashboard.X_AXIS, dashboard.TABLE}
    read |= {key for section in dashboard.LAYOUT for panel in section.panels for key in panel.keys}
    written = inspect.getsource(health)
    read |= set(re.findall(r'"((?:reward|memory|groups|engine|ending)/\w+)"', written))
    assert {"memory/reward_std", "groups/constant_share", "engine/mismatch_mean"} <= read
    assert read - LOGGED == set()
    keys = [key.replace("<k>", "3") for key in LOGGED]
    for panel in curves.PANELS:
        if panel.pattern is not None:
            assert any(re.fullmatch(panel.pattern, key) for key in keys), panel.title
