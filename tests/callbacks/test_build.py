"""Which callbacks a run gets, in which order, and those of one's own (docs/callbacks.md)
(around the method)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as pl
import pytest

from callbacks.build import run_callbacks, stage_callbacks
from callbacks.epoch_record import EpochRecordCallback
from callbacks.more import more_callbacks
from mempo.command.callbacks import configured_callbacks
from mempo.command.cli import compose
from mempo.data.tasks import TaskSets
from mempo.records import epoch_record
from mempo.runtime.errors import ConfigError
from mempo.runtime.gather import gather_objects
from mempo.runtime.phases import Phases
from mempo.training.interface import epoch_record as read_record
from tests.support.docs_examples import commands, example
from tests.support.handmade import make_trajectory


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to start a run in, with the page's example, and one that is broken."""
    (tmp_path / "my_callbacks.py").write_text(example("callbacks.md", "python"))
    (tmp_path / "broken_callbacks.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_callbacks", "broken_callbacks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def names(*overrides: str) -> list[str]:
    return [type(one).__name__ for one in run_callbacks(compose("train", overrides))]


def test_the_default_run_has_every_callback_in_its_order() -> None:
    assert names() == [
        "MemoryRewardCallback",
        "EpochRecordCallback",
        "UpdateProgressCallback",
        "MetricsFileCallback",
        "MetricsLoggersCallback",
        "TrajectoriesFileCallback",
        "EpochLineCallback",
        "MismatchWarningCallback",
        "HealthCallback",
        "MemoryDistributionsCallback",
        "SampledTrajectoriesCallback",
        "SavedModelCallback",
        "HeldOutEvaluationCallback",
        "CheckpointsCallback",
    ]


def test_the_settings_leave_out_what_they_name() -> None:
    assert names("callbacks=minimal", "evaluation.enabled=false") == [
        "MemoryRewardCallback",
        "EpochRecordCallback",
        "MetricsFileCallback",
        "MetricsLoggersCallback",
        "TrajectoriesFileCallback",
        "EpochLineCallback",
        "MismatchWarningCallback",
        "SavedModelCallback",
        "CheckpointsCallback",
    ]


@pytest.mark.usefixtures("here")
def test_the_pages_command_adds_its_callback_before_the_model_is_saved() -> None:
    on_the_command_line, from_a_file = commands("callbacks.md")
    assert from_a_file == ["--config-dir", "my_conf", "callbacks=mine"]
    callbacks = configured_callbacks(compose("train", on_the_command_line)).reinforcement
    assert len(callbacks) == 15
    own: Any = callbacks[-4]
    assert (type(own).__name__, own.key, own.limit) == ("StopAbove", "reward/mean", 0.9)


STOP = "my_callbacks.StopAbove"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"key": "a"}, r"callbacks\.more\.mine\._target_ is missing"),
        ({"_target_": "StopAbove"}, r"_target_=StopAbove: write it as module\.name"),
        ({"_target_": "my_callback.StopAbove"}, "there is no module my_callback in "),
        ({"_target_": "my_callbacks.StopAbov"}, rf"has no StopAbov; did you mean {STOP}\?"),
        (
            {"_target_": STOP, "key": "a", "limt": 1},
            rf"callbacks\.more\.mine: .*'limit'.*{STOP} takes key, limit|'limt'.*takes key, limit",
        ),
        ({"_target_": "pathlib.Path"}, "makes a PosixPath, and a lightning.pytorch.Callback"),
        ({"_target_": "math.pi"}, r"_target_=math\.pi is no class"),
        (
            {"_target_": STOP, "key": {"_target_": "nowhere.Key"}, "limit": 1},
            r"callbacks\.more\.mine: .*nowhere\.Key",
        ),
    ],
)
def test_what_is_wrong_with_a_callback_gets_a_sentence(node: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        more_callbacks({"mine": node})


@pytest.mark.usefixtures("here")
def test_a_fault_in_ones_own_code_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        more_callbacks({"mine": {"_target_": "broken_callbacks.Mine"}})
    with pytest.raises(ZeroDivisionError):
        more_callbacks({"mine": {"_target_": "fractions.Fraction", "denominator": 0}})


def test_arguments_are_plain_values() -> None:
    (made,) = more_callbacks(
        {
            "lambda": {
                "_target_": "lightning.pytorch.callbacks.LambdaCallback",
                "on_fit_start": {"_target_": "builtins.dict", "a": [1, 2]},
            }
        }
    )
    assert cast(Any, made).on_fit_start == {"a": [1, 2]}
    assert type(cast(Any, made).on_fit_start["a"]) is list


def test_misspelled_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.mor: there is no such setting"):
        compose("train", ["+callbacks.mor.mine._target_=a.B"])
    for name, words in (
        ("callbacks.build.stage_callback", r"did you mean callbacks\.build\.stage_callbacks\?"),
        ("callbacks.build.run_callbacks", "gives a list: it must be a function"),
    ):
        with pytest.raises(ConfigError, match=rf"callbacks\.built_by={name}.*{words}"):
            configured_callbacks(compose("train", [f"callbacks.built_by={name}"]))


def test_the_supervised_stage_has_its_bar() -> None:
    (bar,) = stage_callbacks(compose("train", ["sft.steps=7"])).supervised
    assert cast(Any, bar).steps == 7


def test_an_epoch_is_gathered_once_for_all_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = []

    def counted(value: Any) -> list[Any]:
        gathered.append(value)
        return gather_objects(value)

    monkeypatch.setattr(epoch_record, "gather_objects", counted)
    config = compose("train", ["evaluation.enabled=false"], run_dir=tmp_path)
    module = cast(Any, SimpleNamespace(epoch_metrics={}, phases=Phases()))
    callbacks = run_callbacks(config)
    for epoch in range(3):
        source = SimpleNamespace(
            tasks=TaskSets([], [], {}),
            trajectories=[make_trajectory()],
            phases=Phases(),
            staleness=0,
            record={},
        )
        trainer: Any = SimpleNamespace(
            current_epoch=epoch,
            global_step=epoch,
            max_epochs=3,
            is_global_zero=True,
            global_rank=0,
            loggers=[],
            datamodule=source,
        )
        for one in callbacks[:-2]:  # all but the saved model and the checkpoints
            one.on_train_epoch_end(trainer, module)
        assert len(gathered) == epoch + 1


def test_a_record_that_is_not_there_yet_is_an_error() -> None:
    source = SimpleNamespace(
        tasks=TaskSets([], [], {}),
        trajectories=[make_trajectory()],
        phases=Phases(),
        staleness=0,
        record={},
    )
    trainer: Any = SimpleNamespace(current_epoch=0, global_step=1, datamodule=source)
    with pytest.raises(RuntimeError, match="behind EpochRecordCallback"):
        read_record(trainer)
    module = cast(pl.LightningModule, SimpleNamespace(epoch_metrics={}, phases=Phases()))
    EpochRecordCallback().on_train_epoch_end(trainer, module)
    assert read_record(trainer)["reward/mean"] == 1.0
    trainer.current_epoch = 1
    with pytest.raises(RuntimeError, match="record of epoch 1"):
        read_record(trainer)
