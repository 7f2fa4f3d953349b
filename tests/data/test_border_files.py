"""Questions in the shapes that people have: golds and counts that each file must give
(specification section 11)."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mempo.command.cli import compose
from mempo.data.formats import Loaded, Options, QuestionSource, load_questions
from mempo.data.formats.hotpotqa import read_aliases
from mempo.data.tasks import load_task_sets
from mempo.row_files.rows import DataError
from mempo.runtime.errors import ConfigError
from tests.support.border_files import borders

QUESTIONS = borders("questions")
EXPECTED: dict[str, dict[str, Any]] = json.loads(
    (QUESTIONS / "expected.json").read_text(encoding="utf-8")
)
USUAL = Options()


def load(name: str, options: Options = USUAL) -> Loaded:
    expected = EXPECTED[name]
    if "aliases" in expected:
        options = replace(options, aliases=read_aliases(QUESTIONS / expected["aliases"]))
    return load_questions(QuestionSource(expected["format"], str(QUESTIONS / name)), options)


def test_every_file_is_expected() -> None:
    files = {path.name for path in QUESTIONS.iterdir()}
    assert files - {"expected.json", "id_aliases.json"} == set(EXPECTED)
    for one in EXPECTED.values():
        assert set(one) <= {"format", "golds", "objectives", "passages", "aliases", "note"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_gives_its_golds(name: str) -> None:
    loaded = load(name, Options(skip_bad_rows=True))
    found = [[list(one.golds) for one in task.objectives] for task in loaded.tasks]
    if name == "semicolon_gold.jsonl":
        assert found == [[["Salt; Sand"]], [["Ann"]], [["Bo"]]]
        return
    wanted = EXPECTED[name]
    assert found == wanted.get("objectives", [[golds] for golds in wanted.get("golds", [])])
    assert len(loaded.passages) == wanted.get("passages", len(loaded.passages))
    assert loaded.skipped == (1 if name == "squad.json" else 0)


@pytest.mark.parametrize(
    ("name", "ids", "questions"),
    [
        ("popqa.tsv", ["4222362"], ["What is Ivo Marsh's occupation?"]),
        (
            "array_repr.csv",
            ["nq/test_0", "nq/test_1"],
            ["who sang the harbour song", "when did the old bridge open"],
        ),
        ("nq_open.jsonl.gz", ["nq_open-1"], ["where is the north lighthouse"]),
        ("kilt.jsonl", ["k1"], ["who founded the Amber Works"]),
        ("squad.json", ["s1"], ["Who founded Amber Works?"]),
        ("mem1_multi.parquet", ["nq/0"], ["Answer: who sang A?; when did B open?"]),
    ],
)
def test_ids_and_questions(name: str, ids: list[str], questions: list[str]) -> None:
    tasks = load(name, Options(skip_bad_rows=True)).tasks
    assert [task.id for task in tasks] == ids
    assert [task.question for task in tasks] == questions


def test_a_question_of_squad_without_an_answer_is_named() -> None:
    with pytest.raises(DataError, match=r"squad\.json, row 1, question s2: .*holds no answer"):
        load("squad.json")


def test_squad_on_the_hub(tmp_path: Path) -> None:
    row = {"id": "s", "title": "T", "context": "C", "question": "Q?"}
    row |= {"answers": {"text": ["A", "B", "A"], "answer_start": [1, 2, 3]}}  # type: ignore[dict-item]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    (task,) = load_questions(QuestionSource("open_qa", str(path))).tasks
    assert task.objectives[0].golds == ("A", "B")


def test_a_row_without_the_context_that_its_file_promises_is_named() -> None:
    (note,) = load("2wiki.json").told.sentences()
    assert note == (
        "1 rows bring no passages, though others of their file do (the first: "
        f"{QUESTIONS / '2wiki.json'}:1, row 2)"
    )
    assert not list(
        load_questions(
            QuestionSource("hotpotqa", str(QUESTIONS / "2wiki.json")), with_passages=False
        ).told.sentences()
    )


def test_passages_without_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"_id": "a", "question": "Q?", "answer": "A", "context": [["T", []], ["U", ["x"]]]}
    path.write_text(json.dumps(row), encoding="utf-8")
    loaded = load_questions(QuestionSource("hotpotqa", str(path)))
    assert [one.title for one in loaded.passages] == ["U"]
    assert list(loaded.told.sentences()) == [
        f"1 rows hold passages without text, which were left out (the first: {path}:1)"
    ]


def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "1", "contents": "T\\ntext"}\n', encoding="utf-8")
    return f"data.corpus={path}"


def sets(*overrides: str) -> Any:
    return load_task_sets(compose("train", [*overrides, "rollout.tasks_per_epoch=1"]))


def test_golds_with_a_semicolon_stand_in_no_composition(tmp_path: Path) -> None:
    file = QUESTIONS / "semicolon_gold.jsonl"
    given = ("data=open_qa", f"data.questions={file}", f"data.heldout_questions={file}")
    found = sets(*given, corpus(tmp_path), "data.objectives=2")
    for tasks in (found.train, found.heldout):
        (task,) = tasks
        assert sorted(one.golds for one in task.objectives) == [("Ann",), ("Bo",)]
    assert found.notes == (
        '2 rows hold ";" in a gold and were left out of tasks of several questions '
        "(the first: semicolon_gold-1)",
    )
    alone = sets(*given, corpus(tmp_path), "data.objectives=1")
    assert [task.gold for task in alone.train] == ["Salt; Sand", "Ann", "Bo"]
    assert alone.notes == ()


def test_rows_of_several_objectives_are_taken_as_they_are(tmp_path: Path) -> None:
    file = QUESTIONS / "mem1_multi.parquet"
    given = ("data=search_r1", f"data.questions={file}", f"data.heldout_questions={file}")
    (task,) = sets(*given, corpus(tmp_path), "data.objectives=1").train
    assert task.gold == "Ann; 1902"
    with pytest.raises(
        DataError, match=r"row nq/0 asks 2 questions already: set data.objectives=1"
    ):
        sets(*given, corpus(tmp_path), "data.objectives=2")


def test_aliases_are_read_through_their_setting(tmp_path: Path) -> None:
    given = ["data=hotpotqa", f"data.questions={QUESTIONS / '2wiki.json'}", "data.objectives=1"]
    given.append(f"data.heldout_questions={QUESTIONS / '2wiki.json'}")
    found = sets(*given, f"data.aliases={QUESTIONS / 'id_aliases.json'}")
    assert [task.objectives[0].golds for task in found.train] == [
        ("Mia Orr", "Maria Orr"),
        ("Ana Vale", "A. Vale"),
    ]
    with pytest.raises(ConfigError, match=r"data\.aliases=.*missing"):
        sets(*given, f"data.aliases={tmp_path / 'missing.json'}")
    path = tmp_path / "aliases.json"
    path.write_text('{"Q_id": "Q7", "aliases": "Maria"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r'aliases\.json:1: the field "aliases" must be a list'):
        sets(*given, f"data.aliases={path}")
    path.write_text('{"Q_id": "Q7", "aliases": ["M"], "demonyms": ["N", "M"]}\n', encoding="utf-8")
    assert read_aliases(path) == {"Q7": ("M", "N")}
    with pytest.raises(ConfigError, match="only the rows of data=hotpotqa"):
        sets("data=musique", *given[1:], f"data.aliases={path}")


# Search-R1's rows as text, and its mark inside a question

TAGS = "Answer it inside <answer> and </answer>."


def search_r1(tmp_path: Path, **fields: Any) -> Loaded:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": "a", **fields}), encoding="utf-8")
    return load_questions(QuestionSource("search_r1", str(path)))


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_objects_written_as_text_are_read(tmp_path: Path, write: Any) -> None:
    prompt = [{"role": "user", "content": f"{TAGS} Question: who's there?"}]
    model = {"ground_truth": {"target": ["Ann", "Anna"]}, "style": "rule"}
    for fields in (
        {"prompt": write(prompt), "reward_model": model},
        {"prompt": prompt, "reward_model": write(model)},
        {"prompt": prompt, "reward_model": {"ground_truth": write(model["ground_truth"])}},
        {"prompt": write(prompt), "reward_model": {"ground_truth": write(["Ann", "Anna"])}},
    ):
        (task,) = search_r1(tmp_path, **fields).tasks
        assert (task.question, task.objectives[0].golds) == ("who's there?", ("Ann", "Anna"))
    (task,) = search_r1(
        tmp_path,
        prompt="Who?; When?",
        extra_info=write({"index": 7}),
        reward_model={"ground_truth": write([["Ann"], ["1902", "in 1902"]])}
        if write is json.dumps
        else {"ground_truth": {"target": [["Ann"], ["1902", "in 1902"]]}},
    ).tasks
    assert [(one.question, one.golds) for one in task.objectives] == [
        ("Who?", ("Ann",)),
        ("When?", ("1902", "in 1902")),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward_model": '{"ground_truth": '}, 'the field "reward_model" looks like a list or'),
        ({"reward_model": {"ground_truth": "{'target': array(['A'])}"}}, "looks like a list or"),
        ({"prompt": "[{'role': 'user'} {'role': 'user'}]"}, 'the field "prompt" looks like'),
        ({"reward_model": {"ground_truth": [["A"], ["B"], ["C"]]}}, "golds of 3 questions, but 1"),
        ({"reward_model": {"ground_truth": [["A"], []]}}, "golds of 2 questions, but 1"),
        ({"reward_model": {"ground_truth": '["\\ud83d"]'}}, "half a character"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    good = {"prompt": "Q?", "reward_model": {"ground_truth": "A"}}
    with pytest.raises(DataError, match=re.escape(message)):
        search_r1(tmp_path, **{**good, **fields})


def test_the_first_mark_after_the_instructions_begins_the_question(tmp_path: Path) -> None:
    question = "Which paper has the title Question: who answers?"
    loaded = search_r1(tmp_path, prompt=f"{TAGS} Question: {question}", golden_answers=["A"])
    assert loaded.tasks[0].question == question
    assert '1 rows hold "Question:" twice' in next(loaded.told.sentences())
    with pytest.raises(DataError, match='no "Question:" after them'):
        search_r1(tmp_path, prompt=f"{TAGS} Question: What is <search>?", golden_answers=["A"])


# Tables and packed files


def rows_of(path: Path) -> list[Any]:
    loaded = load_questions(QuestionSource("open_qa", str(path)), Options(skip_bad_rows=True))
    return [(task.id, task.question, task.objectives[0].golds) for task in loaded.tasks]


def test_a_table_with_quotes_blank_cells_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    text = '\ufeffid,question,answer,aliases\n1,"a ""b"",\nc?",A,\n,d?,1873,x\n\n'
    path.write_text(text, encoding="utf-8")
    assert rows_of(path) == [("1", 'a "b",\nc?', ("A",)), ("rows-2", "d?", ("1873",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            b"3\tq?",
            "3: the row has 2 cells, and the first line names 3 columns: id, question, answ",
        ),
        (b'3\t"q" r?\tA', "3: the row is no row of a table"),
        (b"3\tq \xff?\tA", "3: the row is not UTF-8"),
        (b"", "3: the line is blank"),
        (b"3\tq?\t", "there are no gold answers"),
        (b'3\tq?\t"[""\\ud83d""]"', "half a character"),
    ],
)
def test_a_bad_row_of_a_table_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_bytes(b"id\tquestion\tanswer\n1\tp?\tA\n" + line + b"\n4\ts?\tB\n")
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_questions(QuestionSource("open_qa", str(path)))
    assert str(caught.value).startswith(f"{path}:3")
    loaded = load_questions(QuestionSource("open_qa", str(path)), Options(skip_bad_rows=True))
    assert ([task.id for task in loaded.tasks], loaded.skipped) == (["1", "4"], 1)


def test_a_table_names_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("id\t\tid\n1\t2\t3\n", encoding="utf-8")
    with pytest.raises(DataError, match="the first line must name the columns"):
        rows_of(path)


@pytest.mark.parametrize("name", ["local", "open_qa"])
def test_every_kind_of_text_may_be_packed(tmp_path: Path, name: str) -> None:
    row = {"id": "a", "question": "Q?", "answer": "A"}
    kinds = {
        "x.jsonl": json.dumps(row) + "\n\n",
        "x.json": json.dumps([row]),
        "x.tsv": "id\tquestion\tanswer\na\tQ?\tA\n",
        "x.csv": "id,question,answer\na,Q?,A\n",
    }
    for file, text in kinds.items():
        for path, content in (
            (tmp_path / file, text.encode()),
            (tmp_path / f"{file}.gz", gzip.compress(text.encode())),
        ):
            path.write_bytes(content)
            (task,) = load_questions(QuestionSource(name, str(path))).tasks
            assert (task.id, task.question, task.gold) == ("a", "Q?", "A")


@pytest.mark.parametrize("name", ["local", "open_qa"])
def test_a_damaged_packed_file_is_named(tmp_path: Path, name: str) -> None:
    whole = gzip.compress(b'{"question": "Q?", "answer": "A"}\n' * 50)
    path = tmp_path / "x.jsonl.gz"
    for content in (whole[:-20], b"no gzip at all", whole[:20] + b"\xff" * 20 + whole[40:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.jsonl\.gz: cannot be read"):
            load_questions(QuestionSource(name, str(path)))
