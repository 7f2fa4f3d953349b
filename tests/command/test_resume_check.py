"""What may change when a run goes on, and what a refused command leaves alone (around the
method)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mempo.command.cli import compose_tree, to_config
from mempo.command.resume_check import check_resume
from mempo.command.run_record import _claim
from mempo.runtime.errors import ConfigError
from mempo.runtime.program import hydra_value

ROOT = Path(__file__).resolve().parents[2]


def tree(folder: Path, *overrides: str) -> Any:
    return compose_tree("train", overrides, run_dir=folder)


def begin(folder: Path, *overrides: str, epochs: int = 0) -> None:
    """What a run leaves that has finished ``epochs``."""
    (folder / ".hydra").mkdir(parents=True)
    whole = OmegaConf.to_container(tree(folder, *overrides), resolve=True)
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(whole))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / f"epoch-{epochs:05d}.ckpt").write_bytes(b"")


def go_on(folder: Path, *overrides: str) -> None:
    composed = tree(folder, *overrides, "resume=auto")
    whole = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    check_resume(to_config(composed), whole)


def test_what_changes_no_figure_may_change(tmp_path: Path) -> None:
    begin(tmp_path / "run", "seed=3", epochs=2)
    go_on(
        tmp_path / "run",
        "seed=3",
        "logger=none",
        "callbacks=minimal",
        "trainer.devices=2",
        "optimizer.micro_batch_tokens=128",
        "scoring.batch_tokens=99",
        "evaluation.tasks=3",
        "reward.workers=3",
        "reward.judge.url=http://127.0.0.1:9/v1",
    )
    go_on(tmp_path / "nothing_there", "algorithm=grpo")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=7", "seed is 7 and was 3"),
        ("algorithm=grpo", r"algorithm\.name is grpo and was mempo"),
        ("data.objectives=1", r"data\.objectives is 1 and was 2"),
        ("optimizer.learning_rate=0.5", r"optimizer\.learning_rate is 0\.5 and was"),
        ("optimizer.weight_decay=0.5", r"optimizer\.weight_decay is 0\.5 and was 0\.0"),
        ("rollout.context=memory", r"rollout\.context is memory and was full"),
        ("reward.metric=f1", r"reward\.metric is f1 and was exact_match"),
        ("reward.terms={f1: 1.0}", r"reward\.terms is \{'f1': 1\.0\} and was null"),
        ("lora=default", r"model\.lora is .*rank.* and was null"),
    ],
)
def test_another_run_is_not_mixed_into_this_one(tmp_path: Path, override: str, words: str) -> None:
    begin(tmp_path / "run", "seed=3", epochs=2)
    with pytest.raises(ConfigError, match=f"holds another run: .*{words}"):
        go_on(tmp_path / "run", *(["seed=3"] if "seed" not in override else []), override)


def test_more_epochs_need_a_word_about_the_schedule(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begin(folder, "trainer.max_epochs=65", epochs=65)
    with pytest.raises(ConfigError, match=r"decay_epochs=65 .*or stretch it .*decay_epochs=66"):
        go_on(folder, "trainer.max_epochs=66")
    go_on(folder, "trainer.max_epochs=66", "optimizer.decay_epochs=66")
    go_on(folder, "trainer.max_epochs=66", "optimizer.decay_epochs=65")
    with pytest.raises(ConfigError, match=r"max_epochs=64, but the run .* has finished 65 epochs"):
        go_on(folder, "trainer.max_epochs=64", "optimizer.decay_epochs=64")


def test_a_schedule_that_does_not_fall_needs_none(tmp_path: Path) -> None:
    begin(tmp_path / "run", "optimizer.decay=none", "trainer.max_epochs=2", epochs=2)
    go_on(tmp_path / "run", "optimizer.decay=none", "trainer.max_epochs=4")


def test_a_refused_command_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run, "seed=3", epochs=1)
    (run / "metrics.jsonl").write_text('{"epoch": 0}\n')
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (
        [f"run_dir={run}", "algorithm=grpo", "seed=7"],
        [f"run_dir={run}", "algorithm=grpo", "seed=7", "resume=auto"],
        [f"run_dir={empty}", "data.corpus=no_such_file"],
        [f"run_dir={empty}", "dry_run=true"],
    ):
        done = subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == (0 if "dry_run=true" in arguments else 2), done.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert empty.is_dir()
    assert not list(empty.iterdir())


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-31" / "12-00-00"
    claimed = [_claim(folder) for _ in range(3)]
    assert [path.name for path in claimed] == ["12-00-00", "12-00-00-2", "12-00-00-3"]


@given(st.text(st.sampled_from("ab'\\ =,#${}[]()日\"~:;"), min_size=1))
def test_hydra_reads_back_what_a_hint_prints_property(path: str) -> None:
    parser = OverridesParser.create()
    (override,) = parser.parse_overrides([f"run_dir={hydra_value(path)}"])
    assert str(override.value()) == path


def test_an_ascii_terminal_gets_every_line() -> None:
    program = (
        "from mempo.runtime.friendly_errors import friendly_errors\n"
        "with friendly_errors():\n    print('a – b')"
    )
    plain = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"},
    )
    assert plain.stdout == "a \\u2013 b\n"


def test_tools_may_change_their_limits_and_nothing_else(tmp_path: Path) -> None:
    counter = {"tag": "count", "_target_": "tests.support.own_tools.Counter", "description": None}

    def composed(*overrides: str, **changed: Any) -> Any:
        found = tree(tmp_path / "run", *overrides)
        found.tools.append({**counter, **changed})
        return found

    folder = tmp_path / "run"
    begin(folder, epochs=2)
    whole = OmegaConf.to_container(composed(), resolve=True)
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(whole))

    def resumed(found: Any) -> None:
        found.resume = "auto"
        plain = cast(dict[str, Any], OmegaConf.to_container(found, resolve=True))
        check_resume(to_config(found), plain)

    resumed(composed())
    resumed(composed("tools.0.timeout_s=3", "tools.1.max_error_rate=0.5"))
    for other, words in (
        (composed(tag="add"), r"tools\.2\.tag is add and was count"),
        (composed(_target_="a.b"), r"tools\.2\._target_ is a\.b and was tests\.support"),
        (composed("tools.0.description=x"), r"tools\.0\.description is x and was to search for"),
        (tree(folder), "tools is search, access and was search, access, count"),
    ):
        with pytest.raises(ConfigError, match=f"holds another run: .*{words}"):
            resumed(other)
