"""The study: its cells, what it keeps of them, and its tables (around the method)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mempo.command.cli import compose
from mempo.demonstrations.shipped import shipped_start
from study import __main__ as program
from study.cells import (
    FURTHER,
    FURTHER_VARIANTS,
    START,
    VARIANTS,
    Cell,
    Further,
    Plan,
    cells,
    quick,
)
from study.report import difference, report, seed_means
from study.run import evaluate_command, read_tasks, train_command

NAMES = [variant.name for variant in VARIANTS]


def record(variant: str, seed: int, exact: list[float]) -> dict[str, Any]:
    """A cell that was asked tasks of two and of four questions in the memory context."""
    asked = {"exact_match": exact, "total_tokens": [100.0 + seed] * len(exact)}
    by_count = {"2": asked, "4": {**asked, "exact_match": [one / 2 for one in exact]}}
    return {
        "variant": variant,
        "title": "a variant",
        "seed": seed,
        "commands": [f"python train.py seed={seed}"],
        "tasks": {"memory": by_count},
    }


@pytest.mark.parametrize("variant", VARIANTS, ids=NAMES)
def test_every_command_composes(variant: Any, tmp_path: Path) -> None:
    cell, plan = Cell(variant, 1), Plan()
    train = train_command(cell, plan, tmp_path)
    if variant == START:
        assert train is None
    else:
        assert train is not None
        config = compose("train", [s for s in train[1:] if s != f"run_dir={tmp_path}"])
        assert config.seed == 1
        assert not config.evaluation.enabled
        assert shipped_start(config) is not None
    command = evaluate_command(cell, plan, tmp_path)
    config = compose("evaluate", [s for s in command[1:] if not s.startswith("run_dir=")])
    assert list(config.evaluation.objectives or ()) == [1, 2, 4, 8]
    if variant == START:  # the others' own settings come from the run
        assert config.evaluation.max_round_tokens == 160
    assert config.evaluation.tasks == config.data.world.heldout_tasks == 128


@pytest.mark.parametrize("further", FURTHER, ids=[one.name for one in FURTHER])
@pytest.mark.parametrize("name", FURTHER_VARIANTS)
def test_what_is_asked_besides_composes(further: Further, name: str, tmp_path: Path) -> None:
    cell = Cell(next(one for one in VARIANTS if one.name == name), 0)
    command = evaluate_command(cell, Plan(tasks=16), tmp_path, further)
    config = compose("evaluate", [s for s in command[1:] if not s.startswith("run_dir=")])
    assert config.evaluation.objectives == further.objectives
    assert command[-1] == f"run_dir={tmp_path / further.name}"
    world = config.data.world
    hops = (3, 4) if further.name == "long_chains" else (1, 2)
    assert (world.min_hops, world.max_hops) == hops
    assert world.passages == (2000 if further.name == "large_world" else 200)


def test_further_figures_have_a_table() -> None:
    asked = {"exact_match": [50.0, 100.0], "total_tokens": [100.0, 110.0]}
    tasks = {"memory": {"6": asked}, "full": {"6": {**asked, "exact_match": [0.0, 25.0]}}}
    further: list[dict[str, Any]] = [
        {"variant": name, "further": "more", "seed": 0, "tasks": tasks, "commands": []}
        for name in ("mempo", "start")
    ]
    lines = report([record("mempo", 0, [50.0, 100.0])], further).splitlines()
    at = lines.index("## Asked besides")
    assert lines[at + 4 : at + 6] == [
        "| more | `start` | 6 | 75.0 | 105 | 12.5 | 105 |",
        "| more | `mempo` | 6 | 75.0 | 105 | 12.5 | 105 |",
    ]


def test_seeds_come_one_after_the_other() -> None:
    names = [cell.name for cell in cells(Plan(seeds=(3, 5)))]
    assert names[0] == "start"
    assert names[1 : len(VARIANTS)] == [f"{name}-3" for name in NAMES[1:]]
    assert names[len(VARIANTS) :] == [f"{name}-5" for name in NAMES[1:]]
    only = [cell.name for cell in cells(Plan(seeds=(3, 5)), ["mempo", "grpo-5"])]
    assert only == ["mempo-3", "grpo-5", "mempo-5"]
    with pytest.raises(ValueError, match="--only mempoo: choose of curriculum, curriculum-0"):
        cells(Plan(), ["mempoo"])


def test_the_quick_one_is_three_cells() -> None:
    short = quick(Plan())
    assert [cell.name for cell in cells(short)] == ["start", "grpo-0", "mempo_memory-0"]
    assert short.overrides == ("trainer.max_epochs=10",)


def test_tasks_are_read_by_context_and_count(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text(
        "model,context,objectives,task,exact_match,rounds,total_tokens,peak_tokens\n"
        "m,memory,2,a,0.5,4,100,60\n"
        "m,memory,2,b,1.0,3,80,50\n"
        "m,full,8,c,0.125,64,9000,700\n"
    )
    found = read_tasks(path)
    assert found["memory"]["2"] == {
        "exact_match": [50.0, 100.0],
        "total_tokens": [100.0, 80.0],
        "peak_tokens": [60.0, 50.0],
        "rounds": [4.0, 3.0],
    }
    assert found["full"]["8"]["exact_match"] == [12.5]


def test_the_table_by_hand() -> None:
    """Of mempo seeds of means 75 and 50: 62.5, standard deviation 25 / sqrt 2 = 17.7."""
    records = [
        record("mempo", 0, [50.0, 100.0]),
        record("mempo", 1, [0.0, 100.0]),
        record("grpo", 0, [0.0, 50.0]),
    ]
    assert seed_means(records[:2], "memory", "2", "exact_match") == [75.0, 50.0]
    lines = report(records).splitlines()
    (row,) = [line for line in lines if line.startswith("| `mempo`")]
    cells_of_row = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells_of_row[1:4] == ["2", "62.5 (50.0–75.0, sd 17.7)", "31.2 (25.0–37.5, sd 8.8)"]
    assert cells_of_row[4].startswith("+18.8 (")
    assert cells_of_row[5] == "100 / 100"
    (grpo,) = [line for line in lines if line.startswith("| `grpo`")]
    assert [cell.strip() for cell in grpo.strip("|").split("|")][1:] == [
        *("1", "25.0", "12.5", "", "100 / 100"),
    ]
    assert lines.index(grpo) < lines.index(row)


def test_differences_are_paired_by_task() -> None:
    """The same difference in every task and seed has no spread, however hard the tasks are."""
    better = [record("mempo", seed, [100.0, 60.0, 10.0]) for seed in (0, 1)]
    worse = [record("grpo", seed, [90.0, 50.0, 0.0]) for seed in (0, 1)]
    found = difference(better, worse, "memory", "2")
    assert found == pytest.approx((10.0, 10.0, 10.0))
    assert difference(better, worse, "full", "2") is None


def test_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run_cell(cell: Cell, plan: Plan, runs: Path, results: Path) -> None:
        ran.append(cell.name)
        if cell.name == "mempo_memory-0":
            raise RuntimeError("stopped")
        (results / f"{cell.name}.json").write_text(json.dumps(record(cell.variant.name, 0, [1.0])))

    monkeypatch.setattr(program, "run_cell", run_cell)
    arguments = ["--quick", "--results", str(tmp_path), "--only", "grpo", "mempo_memory"]
    with pytest.raises(RuntimeError):
        program.main(arguments)
    monkeypatch.setattr(program, "run_cell", lambda *_: ran.append("again"))
    program.main(arguments)
    assert ran == ["grpo-0", "mempo_memory-0", "again"]
    assert "cell 1 of 2, grpo-0: done already" in capsys.readouterr().out
    assert "`grpo`" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "study.png").stat().st_size > 1000


def test_settings_stand_behind_two_dashes() -> None:
    options = program.parse(["--quick", "--", "trainer.max_epochs=3", "rollout.group_size=4"])
    assert options.settings == ["trainer.max_epochs=3", "rollout.group_size=4"]
    assert options.quick
