"""Local question files, the held-out split, several objectives (specification section 11)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from mempo.data.compose import compose_objectives, row_ids
from mempo.data.formats import Loaded, Options, QuestionSource, load_questions
from mempo.data.heldout import split_heldout
from mempo.row_files.rows import DataError, line_rows
from mempo.runtime.errors import ConfigError, MempoError
from mempo.trajectory import Objective, Task


def write(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    )
    return path


def load(path: Path, skip_bad_rows: bool = False) -> Loaded:
    source = QuestionSource("local", str(path), corpus="mine")
    return load_questions(source, Options(skip_bad_rows=skip_bad_rows))


def tasks(count: int, corpus: str = "local") -> list[Task]:
    return [
        Task(f"r{i}", (Objective(f"Q{i}?", (f"A{i}", f"B{i}")),), "local", corpus)
        for i in range(count)
    ]


def test_rows_become_tasks(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        json.dumps({"question": " Where? ", "answer": " Tolm "}),
        json.dumps({"id": "x", "question": "Who?", "answer": ["Ann", "Anna", "Ann"], "more": 1}),
        json.dumps({"id": 7, "question": "Größe?", "answer": ["ü"]}, ensure_ascii=False),
    )
    loaded = load(path)
    assert loaded.skipped == 0
    assert loaded.tasks == [
        Task("questions-1", (Objective("Where?", ("Tolm",)),), "local", "mine"),
        Task("x", (Objective("Who?", ("Ann", "Anna")),), "local", "mine"),
        Task("7", (Objective("Größe?", ("ü",)),), "local", "mine"),
    ]


GOOD = '{"id": "a", "question": "Q?", "answer": "A"}'
BAD_LINES = [
    ("{'question': 'Q'}", "not JSON"),
    ("", "line is blank"),
    ("3", "no JSON object"),
    (b"\xc3(", "not UTF-8"),
    ('{"answer": "A"}', 'field "question" is missing'),
    ('{"question": null, "answer": "A"}', 'field "question" is missing'),
    ('{"question": "  ", "answer": "A"}', 'field "question" is blank'),
    ('{"question": ["Q"], "answer": "A"}', 'field "question" must be a text'),
    ('{"question": "Q?"}', 'field "answer" is missing'),
    ('{"question": "Q?", "answer": null}', 'field "answer" is missing'),
    ('{"question": "Q?", "answer": []}', "empty list"),
    ('{"question": "Q?", "answer": ""}', "blank answer"),
    ('{"question": "Q?", "answer": ["A", " "]}', "blank answer"),
    ('{"question": "Q?", "answer": 1873}', "must be a text or a list of texts, it holds 1873"),
    ('{"question": "Q?", "answer": [true]}', "it holds True"),
    ('{"question": "Q?", "answer": {"a": 1}}', "must be a text or a list of texts"),
    ('{"id": {}, "question": "Q?", "answer": "A"}', 'field "id" must be'),
    (r'{"question": "Q \ud83d?", "answer": "A"}', r'field "question" holds \\ud83d, half a char'),
    (
        r'{"question": "Q?", "answer": ["A", "\udc19"]}',
        r'field "answer" holds \\udc19, half a char',
    ),
    ('{"id": "a", "question": "R?", "answer": "B"}', 'id "a" stands already on line 1'),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path, GOOD, line, '{"question": "last", "answer": "L"}')
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert isinstance(caught.value, (ValueError, MempoError))
    loaded = load(path, skip_bad_rows=True)
    assert ([task.question for task in loaded.tasks], loaded.skipped) == (["Q?", "last"], 1)


def test_a_generated_id_does_not_hide_a_given_one(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"id": "questions-2", "question": "Q?", "answer": "A"}',
        '{"question": "R?", "answer": "B"}',
    )
    with pytest.raises(DataError, match="stands already on line 1"):
        load(path)


def test_files_without_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        list(line_rows(tmp_path / "missing.jsonl"))
    with pytest.raises(ConfigError, match=r"data\.questions=.*missing.jsonl: no such file"):
        load(tmp_path / "missing.jsonl")
    for skip in (False, True):
        with pytest.raises(DataError, match="the file is empty"):
            load(write(tmp_path), skip_bad_rows=skip)
    with pytest.raises(DataError, match="none of its 2 rows can be used"):
        load(write(tmp_path, "a", "b"), skip_bad_rows=True)


def test_the_heldout_split_is_complete_stable_and_disjoint() -> None:
    rows = tasks(20)
    train, heldout = split_heldout(rows, 0.25, 0)
    assert len(heldout) == 5
    assert sorted([*train, *heldout], key=rows.index) == rows
    assert (train, heldout) == (
        sorted(train, key=rows.index),
        sorted(heldout, key=rows.index),
    )
    assert split_heldout(rows, 0.25, 0) == (train, heldout)
    assert split_heldout(rows, 0.25, 1) != (train, heldout)


def test_the_same_question_never_stands_on_both_sides() -> None:
    rows = [
        Task(f"{i}", (Objective(f"Who  IS {i // 2}?" if i % 2 else f"who is {i // 2}?", ("A",)),))
        for i in range(20)
    ]
    train, heldout = split_heldout(rows, 0.3, 0)
    assert len(heldout) == 6
    assert not {int(task.id) // 2 for task in train} & {int(task.id) // 2 for task in heldout}


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_both_sides_have_a_task(fraction: float) -> None:
    train, heldout = split_heldout(tasks(3), fraction, 0)
    assert train
    assert heldout
    with pytest.raises(DataError, match=r"data\.heldout_questions"):
        split_heldout(tasks(1), fraction, 0)


def test_composed_tasks_use_each_row_once() -> None:
    rows = tasks(11)
    composed = compose_objectives(rows, 3, 0)
    used = [name for task in composed for name in task.metadata["rows"]]
    assert len(composed) == 3
    assert len(set(used)) == 9
    assert set(used) < {row.id for row in rows}
    by_id = {row.id: row for row in rows}
    for task in composed:
        assert task.objectives == tuple(by_id[r].objectives[0] for r in task.metadata["rows"])
        assert task.metadata["rows_dropped"] == 2
        assert task.corpus == "local"
    assert len({task.id for task in composed}) == 3
    assert compose_objectives(rows, 3, 0) == composed
    assert compose_objectives(rows, 3, 1) != composed


def test_ids_are_made_of_their_rows_in_one_way_only() -> None:
    """Every pair of rows whose ids hold the joiner has an id of its own, and it reads back."""
    names = ["a+b", "c", "a", "b+c", "a%2Bb", "%", "+", "b%", "c+"]
    found: dict[str, set[tuple[str, ...]]] = {}
    for first, second in itertools.permutations(names, 2):
        rows = [Task(name, (Objective(f"{name}?", ("A",)),)) for name in (first, second)]
        (task,) = compose_objectives(rows, 2, 0)
        assert row_ids(task.id) == task.metadata["rows"]
        assert sorted(task.metadata["rows"]) == sorted([first, second])
        found.setdefault(task.id, set()).add(tuple(task.metadata["rows"]))
    assert all(len(rows) == 1 for rows in found.values())
    (single,) = compose_objectives([Task("a+b", (Objective("?", ("A",)),))], 1, 0)
    assert row_ids(single.id) == ["a+b"]
    (plain,) = compose_objectives(tasks(2), 2, 0)
    assert plain.id == "+".join(plain.metadata["rows"])


def test_one_objective_keeps_ids_and_order() -> None:
    rows = tasks(4)
    composed = compose_objectives(rows, 1, 0)
    assert [task.id for task in composed] == [row.id for row in rows]
    assert [task.metadata["rows"] for task in composed] == [[row.id] for row in rows]


def test_what_cannot_be_composed() -> None:
    with pytest.raises(DataError, match=r"data\.objectives=4 needs at least 4 questions"):
        compose_objectives(tasks(3), 4, 0)
    with pytest.raises(ValueError, match="exactly one objective"):
        compose_objectives(compose_objectives(tasks(4), 2, 0), 2, 0)
    with pytest.raises(ValueError, match="different corpora"):
        compose_objectives([*tasks(2), *tasks(2, "other")], 2, 0)
    with pytest.raises(ValueError, match="n=0"):
        compose_objectives(tasks(2), 0, 0)
