"""A run's own files, damaged by a disk or a hand: every file, every damage, every reader. What
cannot be read is told with file and line, and no file changes (around the method)."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from omegaconf import OmegaConf

from callbacks.health import HealthCallback
from callbacks.held_out_evaluation import HeldOutEvaluationCallback
from mempo.command.cli import compose_tree, to_config
from mempo.command.resume_check import check_resume
from mempo.command.run_settings import evaluation_settings
from mempo.config import Config
from mempo.evaluation.evaluate import evaluation_entry, summary
from mempo.evaluation.files import EvaluationFolder
from mempo.forgetting.report import read_report
from mempo.inspect.curves import PANELS, metric_rows, panel_series
from mempo.inspect.document import evaluation_rows
from mempo.inspect.reading import read_run
from mempo.inspect.views import Limits, trajectory_views
from mempo.plots.pictures import quality_against_tokens
from mempo.plots.runs import group_runs, read_plot_run
from mempo.records.health import findings
from mempo.records.run_results import read_metrics
from mempo.runtime.checkpoint_files import is_made, note_made
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.run_files import drop_from_epoch
from tests.support.inspected_run import make_run, world_trajectory

MADE_AGAIN: Final = (
    "checkpoints/made.json"  # what a damaged one says is made again, as after a kill
)
SETTINGS: Final = {"seed": 0, "models": {"a": {"path": "a"}}}
OVERRIDES: Final = ["experiment=debug"]
METRICS: Final = {
    f"{name}{suffix}": 1.0 for name in ("exact_match", "f1", "f1_set") for suffix in ("", "_sum")
}

# The readers. Each reads everything that its program reads of a run folder.


def inspector(run: Path) -> None:
    found = read_run(run)
    views = trajectory_views(found, Limits())
    rows = [evaluation_rows(found.evaluation), metric_rows(found.metrics)]
    series = [panel_series(panel, found.metrics) for panel in PANELS]
    json.dumps([views, rows, found.settings.memory_weight], allow_nan=False)
    assert all(math.isfinite(v or 0) for some in series for one in some for v in one.values)


def plots(run: Path) -> None:
    groups = group_runs([read_plot_run(run)])
    for group in groups:
        band = group.band("reward/mean", 3)
        assert all(math.isfinite(value) for value in band.mean)
        group.rounds("memory_reward_by_round")
    quality_against_tokens(groups)


def forgetting(run: Path) -> None:
    json.dumps(read_report(run / "trajectories.jsonl").as_json(), allow_nan=False)


def evaluate_goes_on(run: Path) -> None:
    folder = EvaluationFolder(run, SETTINGS)
    if not folder.records:
        return
    entry = evaluation_entry([summary(one) for one in folder.records.values()], 2, 0)
    json.dumps(entry, allow_nan=False)


def train_goes_on(run: Path) -> None:
    composed, tree = resumed()
    config = dataclasses.replace(composed, run_dir=str(run))
    check_resume(config, {**tree, "run_dir": str(run)})
    if (run / "metrics.jsonl").exists():
        findings(read_metrics(run / "metrics.jsonl"), config.callbacks.health)
    is_made(run, "after")
    HealthCallback(config.callbacks.health, run)
    HeldOutEvaluationCallback(config)._results()
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        drop_from_epoch(run / name, 5)


def evaluate_takes_settings(run: Path) -> None:
    evaluation_settings([f"evaluation.model_path='{run}'"], str(run / "new"))


@cache
def resumed() -> tuple[Config, dict[str, Any]]:
    tree = compose_tree("train", [*OVERRIDES, "resume=auto"])
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    return to_config(tree), plain


READERS: Final[dict[str, tuple[Callable[[Path], None], tuple[str, ...]]]] = {
    "inspect": (
        inspector,
        ("metrics.jsonl", "trajectories.jsonl", "evaluation.json", ".hydra/config.yaml"),
    ),
    "plots": (plots, ("metrics.jsonl", "evaluation.json", ".hydra/config.yaml")),
    "forgetting": (forgetting, ("trajectories.jsonl",)),
    "evaluate": (evaluate_goes_on, ("trajectories.jsonl", "evaluation_settings.json")),
    "train": (
        train_goes_on,
        (
            *("metrics.jsonl", "trajectories.jsonl", "evaluation.json", ".hydra/config.yaml"),
            MADE_AGAIN,
        ),
    ),
    "evaluate a run": (evaluate_takes_settings, (".hydra/config.yaml", ".hydra/hydra.yaml")),
}


def refusal(read: Callable[[Path], None], run: Path, damage: str) -> str | None:
    try:
        read(run)
    except (MempoError, ConfigError) as error:
        return str(error)
    except Exception as error:
        error.add_note(damage)
        raise
    return None


# The damages.


@dataclass(frozen=True)
class Damage:
    """``data`` is the damaged file; ``line`` what a refusal names, ``cut`` whether half a last line
    follows, which alone is left out."""

    name: str
    data: bytes
    line: int | None = None
    cut: bool = False


WRONG: Final = ("null", '"x"', "[]", "{}", "true", "-1", "1e308", "1e999", "NaN", "9" * 5000)
WHOLE: Final = (b"", b"null", b"[1]", b'"x"', b"NaN", b"{", b"\x00" * 64, b"\xff\xfe")
SECTIONS: Final = ("memory: null", "memory: {weight: .nan}", "memory: {weight: 1e308}", "data: [1]")


def damages(file: str, data: bytes) -> Iterator[Damage]:
    """Whole files, lines between others, and each value by one of another kind."""
    for whole in WHOLE:
        yield Damage(f"all {whole[:8]!r}", whole)
    yield Damage("half", data[: len(data) // 2].rstrip(b"\n"), cut=file.endswith(".jsonl"))
    for text in SECTIONS if file.endswith("config.yaml") else ():
        yield Damage(text, text.encode())
    if not file.endswith(".jsonl"):
        if file.endswith(".json"):
            for name, text in wrong_values(json.loads(data)):
                yield Damage(name, text.encode())
        return
    lines = data.splitlines(keepends=True)
    for wrong in (b"null", b"[]", b"3", b"{", b"", b"NaN", b"\xff", b'{"epoch": 0}'):
        yield Damage(f"line {wrong!r}", b"".join([lines[0], wrong, b"\n", *lines[1:]]), 2)
    for name, text in wrong_values(json.loads(lines[-1])):
        changed = b"".join([*lines[:-1], text.encode(), b"\n"])
        yield Damage(name, changed, len(lines))


def wrong_values(record: Any) -> Iterator[tuple[str, str]]:
    """The record as text with each of its values replaced or left out, one at a time: by every
    wrong value at the top, by some in turn further in."""
    every = (*WRONG, None)
    for number, path in enumerate(paths(record)):
        for wrong in every if len(path) == 1 else every[number % 4 :: 4]:
            copy = json.loads(json.dumps(record))
            inner = copy
            for step in path[:-1]:
                inner = inner[step]
            if wrong is None:
                del inner[path[-1]]
            else:
                inner[path[-1]] = "\u0001"
            text = json.dumps(copy).replace('"\\u0001"', wrong or "")
            yield f"{'.'.join(map(str, path))} {wrong and wrong[:5]}", text


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand, of a list's elements the first: the others are of its kind."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inner in items:
        yield (*before, key)
        if isinstance(inner, (dict, list)):
            yield from paths(inner, (*before, key))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that serves every reader: a run of training that an evaluation goes on with."""
    run = make_run(tmp_path_factory.mktemp("run") / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines.append({"epoch": 2, "reward/mean": 0.5, "memory_reward_by_round/round_2": 0.5})
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    common = {"model": "a", "context": "memory", "format_valid": True, "metrics": METRICS}
    tokens = dict.fromkeys(("total_tokens", "peak_tokens", "policy_tokens"), 5)
    tools = dict.fromkeys(("tool_calls", "tool_failures", "tool_errors", "repeated_rounds"), 0)
    one = {**world_trajectory(), **common, **tokens, **tools, "golds": [["Arlo"], ["Amber"]]}
    one["rounds"] = one["rounds"][:2]
    trajectories = [{**one, "task": task} for task in ("s", "t", "u")]
    (run / "trajectories.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trajectories))
    figures = {"exact_match": 50.0, "total_tokens": 9.0, "endings": {"answered": 2}}
    figures["ci95"] = {"exact_match": [40.0, 60.0]}
    entry = {"context": "memory", **figures, "contexts": {"memory": figures, "full": figures}}
    (run / "evaluation.json").write_text(json.dumps({"before": entry, "after": entry}))
    (run / "evaluation_settings.json").write_text(json.dumps(SETTINGS))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "epoch-00002.ckpt").touch()
    note_made(run, "after")
    (run / ".hydra").mkdir()
    tree = compose_tree("train", OVERRIDES, run_dir=run)
    tree = OmegaConf.masked_copy(tree, ["algorithm", "memory", "model", "rollout", "data"])
    OmegaConf.save(tree, run / ".hydra" / "config.yaml")
    (run / ".hydra" / "hydra.yaml").write_text("hydra: {runtime: {cwd: /}}\n")
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    (run / "model" / "model.safetensors").write_text("")
    return run


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("reader", READERS)
def test_a_whole_folder_is_read(whole: Path, tmp_path: Path, reader: str) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    READERS[reader][0](run)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        assert lines_of(run / name) == lines_of(whole / name)


@pytest.mark.parametrize(
    ("reader", "file"), [(name, file) for name, (_, files) in READERS.items() for file in files]
)
def test_a_damaged_file_is_told_or_does_no_harm(
    whole: Path, tmp_path: Path, reader: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    kept = {one: one.read_bytes() for one in run.rglob("*") if one.is_file()}
    path, refused = run / file, 0
    for damage in damages(file, kept[path]):
        for one, data in kept.items():
            one.write_bytes(data)
        path.write_bytes(damage.data)
        capsys.readouterr()
        told = refusal(READERS[reader][0], run, damage.name)
        if told is not None:
            refused += 1
            where = f"{path}, line {damage.line}: " if damage.line is not None else str(path)
            if "another configuration" in told or "holds another run" in told:
                where = f"run_dir={run}"
            assert where in told, damage.name
            assert path.read_bytes() == damage.data, damage.name
            for one in kept.keys() - {path}:
                assert one.read_bytes() == kept[one] or one.suffix == ".jsonl", damage.name
        elif damage.cut:
            assert "cut off while it was written, and left out" in capsys.readouterr().err
        elif damage.line is not None:
            assert len(path.read_bytes().splitlines()) == len(damage.data.splitlines())
    least = {MADE_AGAIN: 0, ".hydra/hydra.yaml": 1}.get(file, len(WHOLE) // 2)
    assert refused >= least


def test_lines_of_no_task_of_an_evaluation_are_counted(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    folder = EvaluationFolder(run, SETTINGS)
    folder.sort(list(folder.records)[:2])
    path = run / "trajectories.jsonl"
    assert capsys.readouterr().out == (
        f"{path}: 1 lines of no task of this evaluation were left out\n"
    )
    assert [one["task"] for one in lines_of(path)] == ["s", "t"]
