"""Lightning's own switches: each reaches the run, or says what to set (around the method)."""

from __future__ import annotations

import inspect
from dataclasses import fields

import lightning as L
import pytest
from hydra.errors import HydraException
from lightning.pytorch.profilers import SimpleProfiler

from mempo.command.cli import compose, explain_composition
from mempo.config.lightning_switches import INSTEAD, LightningConfig
from mempo.runtime.errors import ConfigError
from mempo.training.run import trainer_arguments

ARGUMENTS = set(inspect.signature(L.Trainer.__init__).parameters) - {"self"}
PASSED = {field.name for field in fields(LightningConfig)}


def test_every_argument_is_passed_or_has_a_reason() -> None:
    """Also those that a later Lightning adds."""
    assert PASSED | set(INSTEAD) == ARGUMENTS
    assert not PASSED & set(INSTEAD)


def test_what_is_passed_reaches_the_trainer() -> None:
    given = {
        "profiler": "simple",
        "detect_anomaly": True,
        "deterministic": "warn",
        "benchmark": False,
        "sync_batchnorm": True,
        "enable_model_summary": True,
    }
    assert set(given) == PASSED
    config = compose(
        "train",
        ["trainer=cpu", *(f"trainer.lightning.{name}={value}" for name, value in given.items())],
    )
    arguments = trainer_arguments(config)
    profiler = arguments["profiler"]
    assert {name: arguments[name] for name in given} == {**given, "profiler": profiler}
    assert (type(profiler), str(profiler.dirpath)) == (SimpleProfiler, config.run_dir)
    trainer = L.Trainer(**arguments, logger=False, enable_checkpointing=False)
    assert vars(trainer)["profiler"] is profiler
    assert trainer._detect_anomaly


def test_the_defaults_are_those_of_before() -> None:
    arguments = trainer_arguments(compose("train", ["trainer=cpu"]))
    lightning = inspect.signature(L.Trainer.__init__).parameters
    for name in PASSED - {"enable_model_summary"}:
        assert arguments[name] == lightning[name].default
    assert arguments["enable_model_summary"] is False


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_another_argument_says_what_to_set(name: str) -> None:
    with pytest.raises((HydraException, ConfigError)) as caught:
        compose("train", [f"trainer.lightning.{name}=1"])
    error = caught.value
    told = explain_composition(error, "train") if isinstance(error, HydraException) else str(error)
    assert told.startswith(f"trainer.lightning.{name}: ")
    assert INSTEAD[name] in told
