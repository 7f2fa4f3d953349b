"""Several data sets at once: ids, corpora, shares, composition, and the order of epochs (section
11)."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mempo.command.cli import compose
from mempo.command.preflight import check_paths
from mempo.config import Config
from mempo.data.compose import row_ids
from mempo.data.epoch_order import Turns, epoch_tasks
from mempo.data.tasks import TaskSets, load_heldout_tasks, load_task_sets
from mempo.row_files.rows import DataError
from mempo.runtime.errors import ConfigError
from mempo.training.datamodule import RolloutDataModule
from mempo.trajectory import Objective, Task
from tests.support.border_files import borders
from tests.support.small_tokenizers import make_tokenizer

BORDERS = borders("questions")
CORPORA = borders("corpora")
EXPECTED: dict[str, dict[str, Any]] = json.loads((BORDERS / "expected.json").read_text("utf-8"))


def hotpot_rows(count: int, word: str = "h", first: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "_id": f"{number}",
            "question": f"Question {word}{number}?",
            "answer": f"Answer {word}{number}",
            "context": [[f"Page {word}{number}", [f"Fact {word}{number}."]]],
        }
        for number in range(first, first + count)
    ]


def open_rows(count: int, word: str = "n") -> list[dict[str, Any]]:
    return [
        {"id": f"{number}", "question": f"question {word}{number}", "answer": [f"{word}{number}"]}
        for number in range(count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def passages(path: Path, word: str) -> Path:
    return write(path, [{"id": "0", "contents": f"{word}\nText of {word}."}])


class Mix:
    """Two real formats with equal ids: HotpotQA with its own passages, NQ-open with a corpus."""

    def __init__(self, folder: Path, hotpotqa: int = 40, nq: int = 20) -> None:
        self.hotpotqa = write(folder / "hotpotqa.jsonl", hotpot_rows(hotpotqa))
        self.nq = write(folder / "nq.jsonl", open_rows(nq))
        self.corpus = passages(folder / "corpus.jsonl", "wiki")

    def config(self, *overrides: str, hotpotqa: str = "", nq: str = "", corpus: str = "") -> Config:
        own = f", corpus: {self.corpus}" if not corpus else ""
        return compose(
            "train",
            [
                "data=mix",
                f"data.mix={{hotpotqa: {{format: hotpotqa, questions: {self.hotpotqa}{hotpotqa}}}, "
                f"nq: {{format: open_qa, questions: {self.nq}{own}{nq}}}}}",
                *([f"data.corpus={corpus}"] if corpus else []),
                "rollout.tasks_per_epoch=4",
                *overrides,
            ],
        )


@pytest.fixture
def mix(tmp_path: Path) -> Mix:
    return Mix(tmp_path)


def order(sets: TaskSets, epoch: int, count: int = 8, seed: int = 3) -> list[Task]:
    return epoch_tasks(sets.train, sets.shares, count, epoch, seed)


# Turns


def test_turns_by_hand() -> None:
    turns = Turns({"a": 0.5, "b": 0.25, "c": 0.25})
    # owed: a .5 | a 0, b .5 | a .5, b -.25, c .75 | a 1
    assert [turns.next("abc") for _ in range(8)] == list("abcaabca")


@pytest.mark.parametrize("shares", [{"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 1, "b": 3, "c": 3}])
def test_turns_never_run_ahead_and_meet_their_shares(shares: dict[str, float]) -> None:
    total, period = sum(shares.values()), 10 if 0.1 in shares.values() else 7
    turns, counts = Turns(shares), Counter[str]()
    for number in range(1, 3 * period + 1):
        counts[turns.next("abc")] += 1
        for name, share in shares.items():
            assert counts[name] < number * share / total + 1
            if number % period == 0:
                assert counts[name] == round(number * share / total)


# Rows


def test_ids_are_unique_though_two_files_use_the_same(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=1"))
    tasks = [*sets.train, *sets.heldout]
    assert len({task.id for task in tasks}) == len(tasks) == 60
    assert {task.id for task in tasks} == {
        *(f"hotpotqa:{number}" for number in range(40)),
        *(f"nq:{number}" for number in range(20)),
    }
    assert Counter(task.source for task in sets.heldout) == {"hotpotqa": 8, "nq": 4}


def test_files_as_people_have_them_are_mixed() -> None:
    """2WikiMultihopQA with its aliases and NQ-open packed: golds as each file alone gives them."""
    config = compose(
        "train",
        [
            "data=mix",
            f"data.mix={{wiki2: {{format: hotpotqa, questions: {BORDERS / '2wiki.json'}, "
            f"aliases: {BORDERS / 'id_aliases.json'}, heldout_questions: {BORDERS / '2wiki.json'}}}"
            f", squad: {{format: open_qa, questions: {BORDERS / 'squad.json'}, heldout_questions: "
            f"{BORDERS / 'squad.json'}, corpus: {CORPORA / 'wiki18_url.jsonl'}}}}}",
            "data.skip_bad_rows=true",
            "data.objectives=1",
            "rollout.tasks_per_epoch=2",
        ],
    )
    sets = load_task_sets(config)
    golds = {
        name: [list(t.objectives[0].golds) for t in sets.train if t.source == name]
        for name in ("wiki2", "squad")
    }
    assert golds == {
        "wiki2": EXPECTED["2wiki.json"]["golds"],
        "squad": EXPECTED["squad.json"]["golds"],
    }
    assert sets.skipped_rows == 2  # SQuAD's question without an answer, read twice
    assert set(sets.retrievers) == {"wiki2", "squad"}


def test_each_task_searches_its_own_corpus(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=1"))
    assert {(task.source, task.corpus) for task in sets.train} == {
        ("hotpotqa", "hotpotqa"),
        ("nq", "nq"),
    }
    assert [one.title for one in sets.retrievers["nq"].search("wiki", 3)] == ["wiki"]
    assert [one.title for one in sets.retrievers["hotpotqa"].search("h7", 1)] == ["Page h7"]


def test_one_corpus_for_all_is_opened_once(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=1", corpus=str(mix.corpus)))
    assert {task.corpus for task in [*sets.train, *sets.heldout]} == set(sets.retrievers) == {"mix"}


def test_faults_are_told_with_file_and_line(mix: Mix, tmp_path: Path) -> None:
    write(mix.nq, [*open_rows(3), {"id": "9", "question": "who"}])
    with pytest.raises(DataError, match=re.escape(f"{mix.nq}:4: there are no gold answers")):
        load_task_sets(mix.config())
    write(mix.nq, [*open_rows(3), open_rows(1)[0]])
    with pytest.raises(DataError, match=re.escape(f'{mix.nq}:4: the id "0" stands already')):
        load_task_sets(mix.config())
    mix.corpus.write_text("{}\n")
    with pytest.raises(DataError, match=re.escape(f"{mix.corpus}:1")):
        load_task_sets(mix.config())
    mix.corpus.unlink()
    with pytest.raises(ConfigError, match=r"data\.mix\.nq\.corpus=.*no such file"):
        check_paths(mix.config())
    mix.hotpotqa.unlink()
    with pytest.raises(ConfigError, match=r"data\.mix\.hotpotqa\.questions=.*no such file"):
        check_paths(mix.config())


def test_bad_rows_of_all_sets_are_counted(mix: Mix) -> None:
    write(mix.nq, [*open_rows(9), {"id": "9", "question": "who"}])
    write(mix.hotpotqa, [*hotpot_rows(9), {"_id": "x", "question": "who"}])
    assert load_task_sets(mix.config("data.skip_bad_rows=true")).skipped_rows == 2


def test_what_one_set_holds_out_no_other_trains_on(mix: Mix, tmp_path: Path) -> None:
    rows = hotpot_rows(40)
    for row in rows[:10]:
        row["question"] = f"QUESTION  {row['question'].split()[1]}"  # but for case and spaces
    held = write(tmp_path / "held.jsonl", [dict(row, _id=f"x{row['_id']}") for row in rows[:10]])
    sets = load_task_sets(
        mix.config("data.objectives=1", nq=f", heldout_questions: {held}", corpus=str(mix.corpus))
    )
    assert not {task.question for task in sets.train} & {f"Question h{n}?" for n in range(10)}
    told = next(note for note in sets.notes if "another data set holds out" in note)
    assert int(told.split()[0]) + sum(t.source == "hotpotqa" for t in sets.train) == 32


# Shares


def test_the_share_of_every_epoch_is_exact(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=2", hotpotqa=", share: 3", nq=", share: 1"))
    assert sets.shares == {"hotpotqa": 3.0, "nq": 1.0}
    for epoch in range(12):
        tasks = order(sets, epoch)
        assert Counter(task.source for task in tasks) == {"hotpotqa": 6, "nq": 2}
        assert len({task.id for task in tasks}) == 8


def test_what_one_epoch_rounds_the_next_makes_good(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=2", hotpotqa=", share: 1", nq=", share: 1"))
    counts = [Counter(task.source for task in order(sets, epoch, 5)) for epoch in range(4)]
    assert [one["hotpotqa"] for one in counts] == [3, 2, 3, 2]
    assert [one["nq"] for one in counts] == [2, 3, 2, 3]


def test_without_shares_the_sizes_count(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=1"))  # 32 and 16 are trained on
    assert sets.shares == {"hotpotqa": 32.0, "nq": 16.0}
    assert Counter(task.source for task in order(sets, 0, 9)) == {"hotpotqa": 6, "nq": 3}


def test_a_count_takes_that_many_questions(mix: Mix) -> None:
    first = load_task_sets(mix.config("data.objectives=1", hotpotqa=", count: 7"))
    assert Counter(task.source for task in first.train) == {"hotpotqa": 7, "nq": 16}
    again = load_task_sets(mix.config("data.objectives=1", hotpotqa=", count: 7"))
    assert first.train == again.train
    other = load_task_sets(mix.config("data.objectives=1", "data.seed=1", hotpotqa=", count: 7"))
    assert {task.id for task in first.train} != {task.id for task in other.train}
    with pytest.raises(DataError, match=r"data\.mix\.nq\.count=17, but .*only 16 questions"):
        load_task_sets(mix.config("data.objectives=1", nq=", count: 17"))


def test_every_question_of_a_set_has_its_turn_before_one_comes_again(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=1", hotpotqa=", share: 1", nq=", share: 1"))
    seen = [task for epoch in range(4) for task in order(sets, epoch)]
    nq = [task.id for task in seen if task.source == "nq"]
    assert len(nq) == 16 == len(set(nq))  # one pass
    later = [t.id for e in range(4, 8) for t in order(sets, e) if t.source == "nq"]
    assert set(later) == set(nq)
    assert later != nq


def test_the_order_is_the_seeds_and_a_resumed_run_has_the_same(mix: Mix) -> None:
    config = mix.config("data.objectives=2", hotpotqa=", share: 1", nq=", share: 1")
    whole = [order(load_task_sets(config), epoch) for epoch in range(6)]
    # A run that goes on reads its files anew and asks for the epochs that are left.
    assert [order(load_task_sets(config), epoch) for epoch in (3, 4, 5)] == whole[3:]
    assert order(load_task_sets(config), 0, seed=4) != whole[0]
    assert len({tuple(task.id for task in tasks) for tasks in whole}) == 6


def test_training_asks_for_these_tasks(mix: Mix) -> None:
    config = mix.config("data.objectives=1", "seed=3", hotpotqa=", share: 1", nq=", share: 1")
    sets = load_task_sets(config)
    module = RolloutDataModule(config, "not opened", make_tokenizer("bytes"), sets)
    for epoch in (0, 5):
        assert module.epoch_tasks(epoch) == order(sets, epoch, 4, seed=3)
    assert sets.sources == ("hotpotqa", "nq")  # what metrics name


def test_a_share_that_a_set_cannot_give_is_refused(mix: Mix) -> None:
    settings = ("data.objectives=1", "rollout.tasks_per_epoch=40")
    with pytest.raises(ConfigError, match=r"takes 20 tasks of nq by its share, .*only 16"):
        load_task_sets(mix.config(*settings, hotpotqa=", share: 1", nq=", share: 1"))


def test_plain_data_has_the_order_that_it_had() -> None:
    """Runs of one data set that were begun before go on with the same tasks."""
    tasks = [Task(f"t{n}", (Objective("Q?", ("A",)),)) for n in range(7)]
    assert [[t.id for t in epoch_tasks(tasks, None, 3, e, 5)] for e in range(3)] == [
        ["t6", "t5", "t3"],
        ["t4", "t2", "t1"],
        ["t1", "t0", "t2"],
    ]


# Composition


def test_within_a_set_objectives_come_from_one(mix: Mix) -> None:
    sets = load_task_sets(mix.config("data.objectives=2"))
    for task in [*sets.train, *sets.heldout]:
        ids = row_ids(task.id)
        assert task.metadata["rows"] == ids
        assert {one.partition(":")[0] for one in ids} == {task.source}
    assert Counter(task.source for task in sets.train) == {"hotpotqa": 16, "nq": 8}


def load_across(mix: Mix, hotpotqa_share: int) -> TaskSets:
    """Two questions a task, of both sets; ``nq`` has one share."""
    return load_task_sets(
        mix.config(
            "data.objectives=2",
            "data.mix_objectives=across",
            corpus=str(mix.corpus),
            hotpotqa=f", share: {hotpotqa_share}",
            nq=", share: 1",
        )
    )


def test_across_sets_every_task_has_the_shares(mix: Mix) -> None:
    sets = load_across(mix, hotpotqa_share=1)
    assert {task.source for task in sets.train} == {"hotpotqa+nq"}
    assert len(sets.train) == 16  # all 16 of nq; 16 of the 32 of hotpotqa are left over
    # And of the 8 and 4 that are held out another 4.
    assert any(note.startswith("20 rows were left over") for note in sets.notes)
    firsts = Counter(row_ids(task.id)[0].partition(":")[0] for task in sets.train)
    assert min(firsts["hotpotqa"], firsts["nq"]) >= 3  # neither is always asked first
    used = [row for task in sets.train for row in row_ids(task.id)]
    assert len(used) == len(set(used)) == 32


def test_across_with_uneven_shares_has_them_over_all_tasks(mix: Mix) -> None:
    sets = load_across(mix, hotpotqa_share=3)
    rows = Counter(r.partition(":")[0] for task in sets.train for r in row_ids(task.id))
    assert rows == {"hotpotqa": 32, "nq": 10} or rows == {"hotpotqa": 31, "nq": 11}
    kinds = Counter(task.source for task in sets.train)
    assert sets.shares == {source: float(count) for source, count in kinds.items()}


def test_across_without_a_corpus_searches_the_passages_of_all(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", hotpot_rows(8, "a"))
    two = write(tmp_path / "two.jsonl", hotpot_rows(8, "b"))
    config = compose(
        "train",
        [
            "data=mix",
            f"data.mix={{a: {{format: hotpotqa, questions: {one}}}, "
            f"b: {{format: hotpotqa, questions: {two}}}}}",
            "data.mix_objectives=across",
            "data.objectives=2",
        ],
    )
    sets = load_task_sets(config)
    assert {task.corpus for task in sets.train} == {"mix"}
    searched = sets.retrievers["mix"].search
    assert [searched(word, 1)[0].title for word in ("a3", "b5")] == ["Page a3", "Page b5"]


# Held-out tasks


def test_the_first_held_out_tasks_have_the_shares(mix: Mix) -> None:
    sets = load_task_sets(
        mix.config(
            "data.heldout_fraction=0.5", "data.objectives=1", hotpotqa=", share: 1", nq=", share: 1"
        )
    )
    assert Counter(task.source for task in sets.heldout) == {"hotpotqa": 20, "nq": 10}
    assert Counter(task.source for task in sets.heldout[:8]) == {"hotpotqa": 4, "nq": 4}


def test_held_out_tasks_of_each_number_of_objectives(mix: Mix) -> None:
    config = mix.config("data.heldout_fraction=0.5", "evaluation.objectives=[2,4]")
    found = load_heldout_tasks(config).by_objectives
    assert {n: Counter(task.source for task in tasks) for n, tasks in found.items()} == {
        2: {"hotpotqa": 10, "nq": 5},
        4: {"hotpotqa": 5, "nq": 2},
    }
    sets = load_task_sets(mix.config("data.heldout_fraction=0.5", "data.objectives=2"))
    assert sets.heldout == found[2]


# Settings that make no sense


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data=mix"], r"data\.mix is empty"),
        (["+data.mix.nq.share=1"], r"data\.mix\.hotpotqa\.share is missing"),
        (["+data.mix.nq.share=0"], r"data\.mix\.nq\.share=0"),
        (["data.mix_objectives=across"], r"hotpotqa and nq have different ones"),
        (["data.mix.nq.corpus=null"], r"data\.mix\.nq\.corpus is empty: data\.mix\.nq\.format"),
        (["data.mix.nq.questions=null"], r"data\.mix\.nq\.questions is empty"),
        (["+data.mix.nq.aliases=a.json"], r"data\.mix\.nq\.aliases=a\.json: only"),
        (["+data.mix.nq.heldout_split=train"], r"data\.mix\.nq\.heldout_split=train is the split"),
        (["data.mix.nq.format=world"], r"data\.mix\.nq\.format='world'"),
        (["+data.mix.other={format: hotpotqa, questions: a}"], r"data\.mix\.other: a data set's"),
        (["data.questions=q.jsonl"], r"data\.questions=q\.jsonl is not read with data=mix"),
        (["data.format=local"], r"data\.mix names data sets, which data=local does not read"),
    ],
)
def test_refused(mix: Mix, overrides: list[str], words: str) -> None:
    alone = overrides == ["data=mix"]
    with pytest.raises(ConfigError, match=words):
        compose("train", overrides) if alone else mix.config(*overrides)
