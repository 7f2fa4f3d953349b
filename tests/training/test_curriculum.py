"""Which tasks a curriculum draws, ``rollout.curriculum`` (around the method)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from mempo.command.cli import compose
from mempo.config import CurriculumConfig
from mempo.data.tasks import load_task_sets
from mempo.runtime.errors import ConfigError
from mempo.training.curriculum import Curriculum, rewards_by_task
from mempo.training.datamodule import RolloutDataModule
from mempo.trajectory import Objective, Task
from tests.support.small_tokenizers import make_tokenizer


def tasks(*counts: int) -> list[Task]:
    return [
        Task(f"t{index}", (Objective("q", ("a",)),) * count, "world", "corpus", {})
        for index, count in enumerate(counts)
    ]


def curriculum(made: list[Task], **settings: float) -> Curriculum:
    return Curriculum(made, CurriculumConfig(enabled=True, **settings), seed=3)  # type: ignore[arg-type]


def test_more_questions_come_when_the_last_groups_earn_enough() -> None:
    made = tasks(1, 1, 1, 2, 2, 4)
    drawn = curriculum(made, grow_at=0.75, window=2)
    assert drawn.questions == 1
    assert {len(task.objectives) for task in drawn.draw(0, 3)} == {1}
    drawn.note({"t0": [1.0, 0.0]})
    assert drawn.questions == 1  # one group is not a window of two
    drawn.note({"t1": [1.0, 0.9]})
    assert drawn.questions == 1  # (0.5 + 0.95) / 2 = 0.725
    drawn.note({"t2": [1.0, 0.2]})
    assert drawn.questions == 2  # (0.95 + 0.6) / 2 = 0.775
    drawn.note({"t0": [1.0, 1.0], "t1": [1.0, 1.0]})
    assert drawn.questions == 2  # groups of fewer questions say nothing of two
    drawn.note({"t3": [1.0, 1.0], "t4": [0.5, 0.5]})
    assert drawn.questions == 4  # 0.75, and no task has three
    drawn.note({"t5": [1.0, 1.0]})
    drawn.note({"t5": [1.0, 1.0]})
    assert drawn.questions == 4


def test_numbers_of_questions_are_equally_likely_and_mixed_groups_come_more_often() -> None:
    made = tasks(*[1] * 3, *[2] * 12)
    drawn = curriculum(made, grow_at=0.5, window=1, mixed_weight=4.0, settled_weight=0.25)
    drawn.note({"t0": [1.0, 1.0], "t1": [1.0, 0.0]})  # t2 is untried
    drawn.note({"t2": [1.0, 1.0]})
    drawn.note({"t2": [1.0, 0.0]})
    assert drawn.questions == 2
    chosen = [drawn.draw(epoch, 1)[0] for epoch in range(4000)]
    counts = Counter(len(task.objectives) for task in chosen)
    assert counts[1] / 4000 == pytest.approx(0.5, abs=0.03)
    ones = Counter(task.id for task in chosen if len(task.objectives) == 1)
    # Weights 0.25, 4 and 4 of 8.25.
    assert ones["t0"] / counts[1] == pytest.approx(0.25 / 8.25, abs=0.015)
    assert ones["t1"] / counts[1] == pytest.approx(4 / 8.25, abs=0.04)


def test_no_task_comes_twice_in_an_epoch_and_a_harder_one_before_none() -> None:
    made = tasks(1, 1, 2, 2)
    drawn = curriculum(made)
    for epoch in range(20):
        assert len({task.id for task in drawn.draw(epoch, 4)}) == 4
    assert Counter(len(task.objectives) for task in drawn.draw(0, 3)) == {1: 2, 2: 1}


def test_a_run_that_goes_on_draws_what_it_would_have_drawn() -> None:
    made = tasks(*[1] * 10, *[2] * 10)
    straight, first = curriculum(made, window=2), curriculum(made, window=2)
    noted = {"t1": [1.0, 1.0], "t2": [1.0, 0.0], "t3": [1.0, 1.0]}
    for one in (straight, first):
        one.note(noted)
        one.draw(1, 4)
    resumed = curriculum(made, window=2)
    resumed.load_state_dict(first.state_dict())
    later = [[task.id for task in one.draw(2, 4)] for one in (straight, resumed)]
    assert later[0] == later[1]
    orders = [tuple(task.id for task in straight.draw(epoch, 4)) for epoch in range(10)]
    assert any(one != other for one, other in pairwise(orders))


def test_rewards_are_gathered_by_task() -> None:
    assert rewards_by_task([("a", 1.0), ("b", 0.0), ("a", 0.5)]) == {"a": [1.0, 0.5], "b": [0.0]}


def test_training_tasks_of_several_numbers_of_questions(tmp_path: Path) -> None:
    sets = load_task_sets(
        compose("train", ["data.train_objectives=[1,3]", "data.world.train_tasks=30"])
    )
    assert Counter(len(task.objectives) for task in sets.train) == {1: 10, 2: 10, 3: 10}
    assert {len(task.objectives) for task in sets.heldout} == {2}
    alone = load_task_sets(compose("train", ["data.world.train_tasks=10"]))
    assert [task for task in sets.train if len(task.objectives) == 2] == alone.train
    questions = tmp_path / "q.jsonl"
    questions.write_text(
        "".join(f'{{"id": "{n}", "question": "q{n}?", "answer": "a{n}"}}\n' for n in range(20))
    )
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "1", "title": "t", "text": "x"}\n')
    local = ["data=local", f"data.questions={questions}", f"data.corpus={corpus}"]
    mixed = load_task_sets(
        compose("train", [*local, "data.heldout_fraction=0.4", "data.train_objectives=[1,2]"])
    )
    assert Counter(len(task.objectives) for task in mixed.train) == {1: 12, 2: 6}


def test_ranges_that_are_none_are_refused() -> None:
    for wrong in ("[0,2]", "[3,2]"):
        with pytest.raises(ConfigError, match=r"data\.train_objectives"):
            compose("train", [f"data.train_objectives={wrong}"])


def test_the_data_module_keeps_it_in_checkpoints(tmp_path: Path) -> None:
    config = compose(
        "train",
        [
            "data.train_objectives=[1,3]",
            "data.world.train_tasks=60",
            "rollout.curriculum.enabled=true",
            "rollout.curriculum.window=1",
        ],
    )
    sets = load_task_sets(config)
    tokenizer = make_tokenizer("bytes")
    straight, resumed = (RolloutDataModule(config, "unused", tokenizer, sets) for _ in "ab")
    first = straight.epoch_tasks(0)
    assert {len(task.objectives) for task in first} == {1}
    curriculum = straight._curriculum
    assert curriculum is not None
    curriculum.note({task.id: [1.0, 1.0] for task in first})
    state = straight.state_dict()
    torch.save(state, tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for epoch in (1, 2):
        assert straight.epoch_tasks(epoch) == resumed.epoch_tasks(epoch)
    assert {len(task.objectives) for task in resumed.epoch_tasks(2)} <= {1, 2}
