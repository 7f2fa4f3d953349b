"""The formats of other data sets: variants, faults, composition, real files (section 11)."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.command.cli import compose
from mempo.config import Config, DataConfig
from mempo.data.formats import FORMATS, Options, QuestionSource, load_questions
from mempo.data.formats.passages import documents
from mempo.data.formats.reading import is_hub_name, read_rows
from mempo.data.formats.row import QuestionRow
from mempo.data.tasks import load_task_sets
from mempo.engine.interface import Sampling
from mempo.retrieval.base import Document, Passage
from mempo.row_files.rows import DataError
from mempo.runtime.errors import ConfigError
from tests.support.fakes import ScriptedEngine
from tests.support.pages import known_page
from tests.support.small_tokenizers import make_conversation

FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats"
ROOT = Path(__file__).resolve().parents[2]
REAL = next(
    (at / "shared" / "data" for at in (ROOT.parent, ROOT) if (at / "shared" / "data").is_dir()),
    ROOT / "shared" / "data",
)
needs_real_files = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")


USUAL = Options()


def read(
    name: str, file: str | Path, options: Options = USUAL
) -> list[tuple[str, str, tuple[str, ...], str]]:
    """The tasks of a file as (id, question, golds, source)."""
    loaded = load_questions(QuestionSource(name, str(FIXTURES / file)), options)
    assert loaded.skipped == 0
    assert all(len(task.objectives) == 1 for task in loaded.tasks)
    return [
        (task.id, task.question, task.objectives[0].golds, task.source) for task in loaded.tasks
    ]


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


# Every variant that an adapter says it reads

EXPECTED: dict[tuple[Any, str], list[tuple[Any, ...]]] = {
    ("local", "local.jsonl"): [
        ("local-1", "Which company did Nila Orr found?", ("Amber Works",), "local"),
        ("b2", "Who leads Velm Hall?", ("Tam Reed", "T. Reed"), "local"),
        ("7", "In which town does the Ister begin?", ("A<|answer_split|>B",), "local"),
    ],
    ("search_r1", "search_r1.jsonl"): [
        ("nq/train_0", "who founded Amber Works", ("Nila Orr", "N. Orr"), "nq"),
        ("nq/7", "where does the question: band play?", ("Velm Hall",), "nq"),
        (
            "popqa/popqa_12",
            "Who is the mother of Dana Quill?",
            ("Ora Quill", "Aurora Quill"),
            "popqa",
        ),
        ("hotpotqa/h-1", "Which river passes Tolm?", ("Ister", "the Ister"), "hotpotqa"),
        ("search_r1-5", "In which year was Tolm founded?", ("1873",), "search_r1"),
        ("2wiki/4", "Who wrote Low Tide?", ("Bren Aske",), "2wiki"),
    ],
    ("asearcher", "asearcher.jsonl"): [
        (
            "q-1",
            "Which company did Nila Orr found?",
            ("Amber Works", "Amber Works Ltd"),
            "hotpotqa",
        ),
        ("b2", "Who leads Velm Hall?", ("Tam Reed", "T. Reed"), "asearcher"),
        ("0", "In which year did Low Tide come out?", ("1987",), "asearcher"),
        (
            "asearcher-4",
            "How tall is the Tolm tower, in metres?",
            ("11.5", "eleven and a half"),
            "asearcher",
        ),
    ],
    ("hotpotqa", "hotpotqa.json"): [
        (
            "5a00000000000000000000a1",
            "Where was the founder of Amber Works born?",
            ("Tolm",),
            "hotpotqa",
        ),
        ("5a00000000000000000000a2", "Are Tolm and Velm both towns?", ("yes",), "hotpotqa"),
    ],
    ("hotpotqa", "hotpotqa_hub.jsonl"): [
        ("h1", "Where was the founder of Amber Works born?", ("Tolm",), "hotpotqa"),
        ("h2", "Is Velm a town?", ("yes",), "hotpotqa"),
    ],
    ("hotpotqa", "2wikimultihopqa.jsonl"): [
        ("w1", "Who is the mother of the writer of Low Tide?", ("Ida Aske",), "2wikimultihopqa"),
        ("w2", "Who is Tam Reed's grandfather?", ("Per Reed", "P. Reed"), "2wikimultihopqa"),
    ],
    ("musique", "musique.jsonl"): [
        (
            "2hop__10_20",
            "Who founded the publisher of Low Tide?",
            ("Nila Orr", "N. Orr"),
            "musique",
        ),
        ("2hop__11_21", "On which river lies the seat of Amber Works?", ("Ister",), "musique"),
    ],
    ("open_qa", "nq_open.jsonl"): [
        ("nq_open-1", "who founded amber works", ("Nila Orr", "Orr"), "open_qa"),
        ("nq_open-2", "when was tolm founded", ("1873",), "open_qa"),
    ],
    ("open_qa", "triviaqa.json"): [
        ("tc_1", "Which river passes Tolm?", ("Ister", "Ister River", "The Ister"), "open_qa"),
        ("tc_2", "Which town has the largest hall?", ("Velm",), "open_qa"),
    ],
    ("open_qa", "triviaqa_hub.jsonl"): [
        ("tc_1", "Which river passes Tolm?", ("Ister", "Ister River"), "open_qa"),
    ],
    ("open_qa", "popqa.jsonl"): [
        (
            "4222362",
            "What is Nila Orr's occupation?",
            ("engineer", 'inventor "by trade"'),
            "open_qa",
        ),
        ("4222363", "Who is the author of Low Tide?", ("Bren Aske",), "open_qa"),
    ],
    ("fanoutqa", "fanoutqa.json"): [
        ("q1/s1", "Who founded Amber Works?", ("Nila Orr, Tam Reed",), "fanoutqa"),
        ("q1/s2", "In which town was Nila Orr born?", ("Tolm",), "fanoutqa"),
        ("q1/s4", "Where is Tam Reed's birth registered?", ("Velm",), "fanoutqa"),
        ("q2/s1", "How many people live in Tolm?", ("12000",), "fanoutqa"),
        ("q2/s2", "Is Tolm a town?", ("Yes", "True"), "fanoutqa"),
        (
            "q2/s3",
            "What are the areas of Tolm and Velm, in square kilometres?",
            ("Tolm: 61.6, Velm: 11",),
            "fanoutqa",
        ),
    ],
}


@pytest.mark.parametrize(("name", "file"), EXPECTED)
def test_every_variant_becomes_a_task(name: str, file: str) -> None:
    assert read(name, file) == EXPECTED[name, file]


def test_every_format_has_a_fixture_a_page_and_a_configuration() -> None:
    assert {name for name, _ in EXPECTED} == set(FORMATS)
    assert {file for _, file in EXPECTED} == {path.name for path in FIXTURES.iterdir()}
    for name in FORMATS:
        page = (ROOT / "docs" / "formats" / f"{name}.md").read_text(encoding="utf-8")
        assert f"data={name}" in page
        assert (ROOT / "conf" / "data" / f"{name}.yaml").is_file()


def test_the_questions_of_fanoutqa_themselves() -> None:
    assert read("fanoutqa", "fanoutqa.json", Options(fanoutqa="questions")) == [
        (
            "q1",
            "In which town was each founder of Amber Works born?",
            ("Nila Orr: Tolm, Tam Reed: Velm",),
            "fanoutqa",
        ),
        ("q2", "How many people live in Tolm and Velm together?", ("15000",), "fanoutqa"),
    ]


def test_a_text_is_not_split_without_a_separator() -> None:
    tasks = read("search_r1", "search_r1.jsonl", Options(answer_separator=None))
    assert tasks[2][2] == ("Ora Quill<|answer_split|>Aurora Quill<|answer_split|>Ora Quill",)
    other = Options(answer_separator="|>")
    assert read("search_r1", "search_r1.jsonl", other)[2][2] == (
        "Ora Quill<|answer_split",
        "Aurora Quill<|answer_split",
        "Ora Quill",
    )


# Passages and corpora

FOUNDED = Passage("Amber Works", "Amber Works is a company. It was founded by Nila Orr.")
BORN = Passage("Nila Orr", "Nila Orr is an engineer. She was born in Tolm.")
PASSAGES = {
    ("hotpotqa", "hotpotqa.json"): [
        FOUNDED,
        BORN,
        Passage("Tolm", "Tolm is a town."),
        Passage("Velm", "Velm is a town."),
        BORN,
    ],
    ("hotpotqa", "hotpotqa_hub.jsonl"): [FOUNDED, BORN, Passage("Velm", "Velm is a town.")],
    ("hotpotqa", "2wikimultihopqa.jsonl"): [
        Passage("Low Tide", "Low Tide is a novel by Bren Aske."),
        Passage("Bren Aske", "Bren Aske is a writer. His mother is Ida Aske."),
        Passage("Tam Reed", "Tam Reed is a son of Ola Reed."),
        Passage("Ola Reed", "Ola Reed is a son of Per Reed."),
    ],
    ("musique", "musique.jsonl"): [
        Passage("Low Tide", "Low Tide was published by Amber Works."),
        Passage("Amber Works", "Amber Works was founded by Nila Orr."),
        Passage("Amber Works", "Amber Works has its seat in Tolm."),
        Passage("Tolm", "Tolm lies on the Ister."),
    ],
}


@pytest.mark.parametrize(("name", "file"), PASSAGES)
def test_every_variant_of_passages(name: str, file: str) -> None:
    source = str(FIXTURES / file)
    assert load_questions(QuestionSource(name, source)).passages == PASSAGES[name, file]
    assert load_questions(QuestionSource(name, source), with_passages=False).passages == []


def test_a_passage_stands_once_in_the_corpus() -> None:
    found = documents(PASSAGES["hotpotqa", "hotpotqa.json"])
    assert [document.title for document in found] == ["Amber Works", "Nila Orr", "Tolm", "Velm"]
    assert [document.id for document in found] == ["0", "1", "2", "3"]
    # Two passages of one page are two documents, which the page index puts together.
    assert len(documents(PASSAGES["musique", "musique.jsonl"])) == 4


def test_the_corpus_of_fanoutqa_has_a_document_for_every_page() -> None:
    loaded = load_questions(QuestionSource("fanoutqa", str(FIXTURES / "fanoutqa.json")))
    found = documents(loaded.passages, FORMATS["fanoutqa"].join_titles)
    url = "https://wiki.invalid/"
    assert found == [
        Document(
            "0", "Amber Works", "Who founded Amber Works? Nila Orr, Tam Reed", f"{url}Amber_Works"
        ),
        Document("1", "Nila Orr", "In which town was Nila Orr born? Tolm", f"{url}Nila_Orr"),
        Document("2", "Tam Reed", "Where is Tam Reed's birth registered? Velm", f"{url}Tam_Reed"),
        Document(
            "3", "Tolm", "How many people live in Tolm? 12000\nIs Tolm a town? Yes", f"{url}Tolm"
        ),
        Document(
            "4",
            "List of towns",
            "What are the areas of Tolm and Velm, in square kilometres? Tolm: 61.6, Velm: 11",
            f"{url}List_of_towns",
        ),
    ]


# Faults: file, line, field, what is there

PROMPT = [{"role": "user", "content": "Q?"}]
TRUTH = {"ground_truth": "A"}
BASE: dict[str, dict[str, Any]] = {
    "local": {"id": "a", "question": "Q?", "answer": "A"},
    "search_r1": {"id": "a", "prompt": PROMPT, "reward_model": TRUTH},
    "asearcher": {"id": "a", "question": "Q?", "answer": "A"},
    "hotpotqa": {"_id": "a", "question": "Q?", "answer": "A"},
    "musique": {"id": "a", "question": "Q?", "answer": "A"},
    "open_qa": {"id": "a", "question": "Q?", "answer": ["A"]},
    "fanoutqa": {"id": "a", "question": "Q?", "answer": "A", "decomposition": []},
}


def part(**fields: Any) -> dict[str, list[dict[str, Any]]]:
    """A decomposition of one sub-question."""
    whole = {"id": "s", "question": "S?", "answer": "A", "evidence": {"title": "T"}, **fields}
    return {"decomposition": [whole]}


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "local",
        {"answer": 1873},
        "must be a text or a list of texts, it holds 1873: put it in quotes",
    ),
    ("local", {"id": [1]}, '"id" must be a text or a whole number, it is a list of 1'),
    ("search_r1", {"prompt": None}, 'there is no question: neither "question" nor "prompt"'),
    (
        "search_r1",
        {"prompt": [{"role": "system", "content": "x"}]},
        "it is a list of 1 that begins with an object with the keys role, content",
    ),
    ("search_r1", {"prompt": {"a": 1}}, "it is an object with the keys a"),
    ("search_r1", {"prompt": "Use <search>. Now go."}, 'tags but no "Question:"'),
    ("search_r1", {"prompt": "Use <search>. Question: "}, 'the question in "prompt" is blank'),
    ("search_r1", {"question": 3}, 'the field "question" must be a text, it is int 3'),
    ("search_r1", {"reward_model": None}, 'the field "reward_model" is missing'),
    (
        "search_r1",
        {"reward_model": {"style": "rule"}},
        'must hold "ground_truth", it is an object with the keys style',
    ),
    ("search_r1", {"reward_model": {"ground_truth": {"goal": "A"}}}, "with the keys goal"),
    ("search_r1", {"reward_model": {"ground_truth": {"target": []}}}, "holds no answer"),
    ("search_r1", {"reward_model": {"ground_truth": "A<|answer_split|> "}}, "blank answer"),
    (
        "search_r1",
        {"reward_model": {"ground_truth": ["A", {"b": 1}]}},
        "it holds an object with the keys b",
    ),
    (
        "search_r1",
        {"id": None, "extra_info": {"index": [1]}},
        '"extra_info.index" must be a text or a whole number, it is a list of 1',
    ),
    ("asearcher", {"question": "  "}, 'the field "question" is blank'),
    ("asearcher", {"answer": None}, 'the field "answer" is missing: questions without gold'),
    ("asearcher", {"answer": ""}, 'the field "answer" holds a blank answer'),
    ("asearcher", {"answer": True}, "it holds bool True"),
    ("asearcher", {"answer": [None]}, "it holds null"),
    ("asearcher", {"aug_answer": ["ok", " "]}, 'the field "aug_answer" holds a blank answer'),
    ("asearcher", {"aug_answer": {"x": 1}}, 'the field "aug_answer" must hold a text, a number or'),
    ("hotpotqa", {"_id": 1.5}, 'the field "_id" must be a text or a whole number, it is float 1.5'),
    ("hotpotqa", {"context": "not JSON"}, 'the field "context" is a text but not JSON'),
    ("hotpotqa", {"context": 5}, 'the field "context" must hold pairs of a title and sentences'),
    ("hotpotqa", {"context": [["T"]]}, "it is a list of 1 that begins with a list of 1"),
    ("hotpotqa", {"context": {"title": ["T"], "sentences": []}}, "the keys title, sentences"),
    ("hotpotqa", {"context": [[" ", ["x"]]]}, 'a passage in "context" must have a title'),
    ("hotpotqa", {"context": [["T", [1]]]}, 'the passage "T" in "context" must hold text or'),
    ("musique", {"answerable": False}, 'the question is not answerable ("answerable" is false)'),
    ("musique", {"paragraphs": [{"title": "T"}]}, 'or "title" with "paragraph_text"'),
    ("musique", {"answer_aliases": [{}]}, "it holds an object with the keys (none)"),
    ("open_qa", {"answer": None}, "there are no gold answers: none of the fields golden_answers"),
    ("open_qa", {"answer": {"text": "A"}}, 'must hold "value" and a list of "aliases"'),
    ("open_qa", {"answer": {"value": "A", "aliases": "B"}}, "the keys value, aliases"),
    ("open_qa", {"answer": {"value": "<unk>", "aliases": []}}, 'the answer is "<unk>"'),
    ("open_qa", {"possible_answers": "['A', \"B\""}, "looks like a list but is not JSON"),
    ("open_qa", {"question": None}, 'the field "question" or "Question" is missing'),
    ("fanoutqa", {"decomposition": None}, 'the field "decomposition" must be a list'),
    ("fanoutqa", {"decomposition": ["S"]}, "sub-question 1 must be an object, it is str 'S'"),
    ("fanoutqa", part(answer=""), 'the field "answer" is blank'),
    ("fanoutqa", part(answer=[]), 'the field "answer" is blank'),
    ("fanoutqa", part(answer=None), "or a list or an object of these, it is null"),
    ("fanoutqa", part(question=None), 'sub-question s: the field "question" is missing'),
    ("fanoutqa", part(evidence="T"), '"evidence" must be null or an object with a title'),
    ("fanoutqa", part(evidence={"title": ""}), 'sub-question s, evidence: the field "title" is'),
]


@pytest.mark.parametrize(("name", "change", "message"), FAULTS)
def test_a_row_that_fits_no_variant_is_told_with_line_and_fields(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    good = {**BASE[name], "id": "g", "_id": "g"}
    if name == "fanoutqa":
        good.update(part())
    path = write(tmp_path / "rows.jsonl", good, {**BASE[name], **change})
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_questions(QuestionSource(name, str(path)))
    assert str(caught.value).startswith(f"{path}:2")
    assert "(fields of this row: " in str(caught.value)
    loaded = load_questions(QuestionSource(name, str(path)), Options(skip_bad_rows=True))
    assert (len(loaded.tasks), loaded.skipped) == (1, 1)


def test_many_fields_are_not_all_shown() -> None:
    row = QuestionRow({f"f{number}": 0 for number in range(25)}, "file:1", "file-1")
    assert str(row.fault("wrong")) == (
        "file:1: wrong (fields of this row: "
        + ", ".join(f"f{number}" for number in range(20))
        + " and 5 more)"
    )
    assert "fields of this row: none" in str(QuestionRow({}, "file:1", "x").fault("wrong"))


def test_an_id_stands_once(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", BASE["asearcher"], BASE["asearcher"])
    with pytest.raises(DataError) as caught:
        load_questions(QuestionSource("asearcher", str(path)))
    assert str(caught.value) == (
        f'{path}:2: the id "a" stands already at {path}:1: give every question its own'
    )
    assert (
        load_questions(QuestionSource("asearcher", str(path)), Options(skip_bad_rows=True)).skipped
        == 1
    )


def test_a_skipped_sub_question_leaves_its_siblings(tmp_path: Path) -> None:
    rows = json.loads((FIXTURES / "fanoutqa.json").read_text(encoding="utf-8"))
    rows[0]["decomposition"][1]["answer"] = " "
    path = write(tmp_path / "rows.json", json.dumps(rows))
    with pytest.raises(DataError, match=r"rows.json:1, row 1, sub-question s2: .* is blank"):
        load_questions(QuestionSource("fanoutqa", str(path)))
    loaded = load_questions(QuestionSource("fanoutqa", str(path)), Options(skip_bad_rows=True))
    assert (len(loaded.tasks), loaded.skipped, len(loaded.passages)) == (5, 1, 5)


def test_skipped_rows_bring_no_passages(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (FIXTURES / "musique.jsonl").read_text().splitlines()]
    rows[0]["answer"] = ""
    loaded = load_questions(
        QuestionSource("musique", str(write(tmp_path / "m.jsonl", *rows))),
        Options(skip_bad_rows=True),
    )
    assert [passage.title for passage in loaded.passages] == ["Amber Works", "Tolm"]


@pytest.mark.parametrize("skip", [False, True])
def test_a_source_needs_a_usable_row(tmp_path: Path, skip: bool) -> None:
    path = write(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="it holds no questions"):
        load_questions(QuestionSource("asearcher", str(path)), Options(skip_bad_rows=skip))
    write(path, {"question": "Q?"}, {"question": "R?"})
    wanted = "none of its 2 rows can be used" if skip else 'the field "answer" is missing'
    with pytest.raises(DataError, match=wanted):
        load_questions(QuestionSource("asearcher", str(path)), Options(skip_bad_rows=skip))


# Reading


def rows_of(source: Path | str, split: str = "train") -> list[QuestionRow | DataError]:
    return list(read_rows(QuestionSource("asearcher", str(source), split=split)))


def fields_of(source: Path | str, split: str = "train") -> list[Any]:
    return [
        row.fields if isinstance(row, QuestionRow) else str(row) for row in rows_of(source, split)
    ]


def test_broken_lines_are_faults_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xc3\x85\xe2\x80\xa8"}\r\n\n{"a": "\xc3("}\n[1]\n{"a": 2')
    first, blank, latin, no_object, cut = rows_of(path)
    assert isinstance(first, QuestionRow)
    assert first == QuestionRow({"a": "Å\u2028"}, f"{path}:1", "rows-1")
    assert str(blank) == f"{path}:2: the line is blank: remove it"
    assert str(latin).startswith(f"{path}:3: the line is not UTF-8")
    assert str(no_object).startswith(f"{path}:4: the line is no JSON object")
    assert str(cut).startswith(f"{path}:5: the line is not JSON")


def test_values_stay_what_they_are(tmp_path: Path) -> None:
    rows = [{"a": "1873"}, {"a": ["x", ["y"]]}, {"a": "2001-02-03"}, {"a": {"k": 1}}, {"b": None}]
    assert fields_of(write(tmp_path / "rows.jsonl", *rows)) == rows
    assert fields_of(write(tmp_path / "rows.json", json.dumps(rows))) == rows


def test_elements_of_a_list_have_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.json", "", "[", '{"a":', "1}", ' , {"a": 2}, 3', "]")
    first, second, third = rows_of(path)
    assert first == QuestionRow({"a": 1}, f"{path}:3, row 1", "rows-1")
    assert second == QuestionRow({"a": 2}, f"{path}:5, row 2", "rows-2")
    assert str(third) == f"{path}:5, row 3: the row is no JSON object, it is int 3"
    assert rows_of(write(path, "[ ]")) == []


def test_half_characters_are_faults_of_their_row(tmp_path: Path) -> None:
    """Whole characters written as two escapes are none."""
    smile = r'{"a": "\ud83d\ude00 \u00e9"}'
    nested = r'{"a": [{"b": "x\ud83d"}]}'
    lines = rows_of(write(tmp_path / "rows.jsonl", smile, nested))
    assert lines[0] == QuestionRow({"a": "😀 é"}, f"{tmp_path}/rows.jsonl:1", "rows-1")
    assert str(lines[1]) == (
        f'{tmp_path}/rows.jsonl:2: the field "a" holds \\ud83d, half a character '
        "(a lone surrogate): write the whole character, or remove it"
    )
    listed = rows_of(write(tmp_path / "rows.json", "[", smile, ",", nested, "]"))
    assert isinstance(listed[0], QuestionRow)
    assert str(listed[1]).startswith(f'{tmp_path}/rows.json:4, row 2: the field "a" holds \\ud83d')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"a": 1}\n{"a": 2}]', ":3: not JSON: a comma or ] must follow row 1"),
        ('[\n{"a": 1},\n{"a": }]', ":3: not JSON (Expecting value)"),
        ('[{"a": 1}', ":1: not JSON: a comma or ] must follow row 1"),
        ('{\n"a": 1}', ": one JSON object with the keys a: give one object per line"),
        ('{\n"a"', ":2: not JSON"),
        ("[" * 200000, ": not usable JSON: it is nested too deeply"),
    ],
)
def test_documents_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        rows_of(path)


def test_a_document_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"a": "\xff"}]')
    with pytest.raises(DataError, match="not UTF-8"):
        rows_of(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("rows.pkl", b"\x80\x04.", "files of this kind are not read: give .jsonl"),
        ("rows.parquet", b"PAR0", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            rows_of(tmp_path / name)
    with pytest.raises(
        ConfigError, match=r"data.questions=.*missing.jsonl: no such file or folder"
    ):
        rows_of(tmp_path / "missing.jsonl")


def test_hub_names() -> None:
    assert is_hub_name("hotpotqa/hotpot_qa")
    for path in (
        "questions.jsonl",
        "data/questions.jsonl",
        "./a/b",
        "/a/b",
        "a/b/c",
        "~/a",
        "name",
    ):
        assert not is_hub_name(path)


def test_parquet_rows_are_numbered(tmp_path: Path) -> None:
    listed = [
        {
            **BASE["search_r1"],
            "id": f"r{number}",
            "reward_model": {"ground_truth": {"target": golds}},
        }
        for number, golds in enumerate((["A", "B"], ["C"], []))
    ]
    path = write_parquet(tmp_path / "train.parquet", listed)
    with pytest.raises(DataError, match=r"train.parquet, row 3: .*target\" holds no answer"):
        load_questions(QuestionSource("search_r1", str(path)))
    loaded = load_questions(QuestionSource("search_r1", str(path)), Options(skip_bad_rows=True))
    assert [task.objectives[0].golds for task in loaded.tasks] == [("A", "B"), ("C",)]
    assert loaded.skipped == 1


def test_folders_have_splits(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", {"a": "1"}, "oops", {"a": ["2"]})
    write_parquet(folder / "test.parquet", [{"a": "3"}])
    # One folder, one kind of file: datasets takes the kind that most files have.
    (folder / "test.parquet").unlink()
    write(folder / "test.jsonl", {"a": "3"})
    found = fields_of(folder)
    assert [found[0], found[2]] == [{"a": "1"}, {"a": ["2"]}]
    assert "train.jsonl:2: the line is not JSON" in found[1]
    assert fields_of(folder, "test") == [{"a": "3"}]
    with pytest.raises(ConfigError, match='it has no split "dev", only train, test'):
        rows_of(folder, "dev")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="datasets cannot open it"):
        rows_of(empty)


def test_hub_names_go_to_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub is asked here: what datasets would find there lies in local files."""
    import datasets

    file = write(tmp_path / "part.jsonl", {"a": 1})
    asked: list[Any] = []

    def builder(*arguments: Any) -> Any:
        asked.append(arguments)
        files = {"train": [str(file), str(file)], "test": [str(tmp_path / "rows.xml")]}
        return SimpleNamespace(config=SimpleNamespace(data_files=files))

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    monkeypatch.setattr(datasets, "load_dataset", partial(rows_or_xml, datasets.load_dataset))
    found = list(read_rows(QuestionSource("hotpotqa", "owner/set", subset="distractor")))
    assert [row.place for row in found if isinstance(row, QuestionRow)] == [f"{file}:1"] * 2
    assert asked == [("owner/set", "distractor")]
    # Files of another kind come as datasets reads them.
    (row,) = read_rows(QuestionSource("hotpotqa", "owner/set", split="test"))
    assert row == QuestionRow({"b": 2}, "owner/set, row 1", "set-1")

    def no_hub(*arguments: Any) -> Any:
        raise ConnectionError("no such host")

    monkeypatch.setattr(datasets, "load_dataset_builder", no_hub)
    with pytest.raises(ConfigError, match=r"owner/set: datasets cannot open it \(no such host\)"):
        rows_of("owner/set")


def rows_or_xml(load_dataset: Any, path: str, *arguments: Any, **options: Any) -> Any:
    if path == "owner/set":
        assert (arguments, options) == ((None,), {"split": "test"})
        return [{"b": 2}]
    return load_dataset(path, *arguments, **options)


def test_folders_that_datasets_saved(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    train, test = (Dataset.from_list([{"a": letter}]) for letter in "xy")
    train.save_to_disk(tmp_path / "one")
    DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "two")
    assert fields_of(tmp_path / "one") == [{"a": "x"}]
    assert fields_of(tmp_path / "two", "test") == [{"a": "y"}]
    with pytest.raises(ConfigError, match='no split "dev", only train, test'):
        rows_of(tmp_path / "two", "dev")


# From the configuration to task sets


def task_sets(*overrides: str) -> Any:
    return load_task_sets(
        compose("train", [*overrides, "rollout.tasks_per_epoch=1", "data.heldout_fraction=0.5"])
    )


@cache
def base_config() -> Config:
    """Composed once: Hydra takes a third of a second."""
    return compose("train")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "corpus.jsonl", {"id": 1, "contents": '"Tolm"\nTolm is a town.'})


@pytest.mark.parametrize(("name", "file"), EXPECTED)
@pytest.mark.parametrize("objectives", [1, 2])
def test_every_format_composes(name: Any, file: str, objectives: int, corpus: Path) -> None:
    rows = len(EXPECTED[name, file])
    data = DataConfig(
        format=name,
        questions=str(FIXTURES / file),
        heldout_questions=str(FIXTURES / file),
        corpus=str(corpus),
        objectives=min(objectives, rows),
    )
    rollout = replace(base_config().rollout, tasks_per_epoch=1)
    sets = load_task_sets(replace(base_config(), data=data, rollout=rollout))
    known = {question: golds for _, question, golds, _ in EXPECTED[name, file]}
    for tasks in (sets.train, sets.heldout):
        assert len(tasks) == rows // min(objectives, rows)
        used = [row for task in tasks for row in task.metadata["rows"]]
        assert len(set(used)) == len(used)
        for task in tasks:
            assert len(task.objectives) == min(objectives, rows)
            assert task.corpus == name
            assert all(known[one.question] == one.golds for one in task.objectives)
    assert set(sets.retrievers) == {name}
    assert known_page(sets.retrievers[name], "Tolm").text == "Tolm is a town."


def test_a_format_with_passages_is_its_own_corpus(tmp_path: Path) -> None:
    both = [f"data.questions={FIXTURES / 'hotpotqa.json'}"]
    both.append(f"data.heldout_questions={FIXTURES / 'hotpotqa_hub.jsonl'}")
    sets = task_sets("data=hotpotqa", *both)
    assert (len(sets.train), len(sets.heldout)) == (2, 2)
    assert [document.title for document in sets.retrievers["hotpotqa"].documents] == [
        "Amber Works",
        "Nila Orr",
        "Tolm",
        "Velm",
    ]
    bare = write(
        tmp_path / "bare.jsonl", *({**BASE["hotpotqa"], "_id": i, "question": i} for i in "ab")
    )
    with pytest.raises(ConfigError, match=r"data\.corpus is empty, and the rows of .*bare\.jsonl"):
        task_sets("data=hotpotqa", f"data.questions={bare}")


def test_siblings_are_composed_within_their_question() -> None:
    questions = f"data.questions={FIXTURES / 'fanoutqa.json'}"
    held = f"data.heldout_questions={FIXTURES / 'fanoutqa.json'}"
    sets = task_sets(
        "data=fanoutqa", questions, held, "data.fanoutqa=siblings", "data.objectives=3"
    )
    assert [sorted(task.metadata["rows"]) for task in sets.train] == [
        ["q1/s1", "q1/s2", "q1/s4"],
        ["q2/s1", "q2/s2", "q2/s3"],
    ]
    with pytest.raises(DataError, match="no question has that many sub-questions; the most is 3"):
        task_sets("data=fanoutqa", questions, held, "data.fanoutqa=siblings", "data.objectives=4")


def test_splits_of_one_folder(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", {"question": "A?", "answer": "1"})
    write(folder / "validation.jsonl", {"question": "B?", "answer": "2"}, {"question": "C?"})
    given = ("data=open_qa", f"data.corpus={corpus}", f"data.questions={folder}")
    sets = task_sets(*given, "data.heldout_split=validation", "data.skip_bad_rows=true")
    assert [task.question for task in sets.train] == ["A?"]
    assert [task.question for task in sets.heldout] == ["B?"]
    assert sets.skipped_rows == 1
    with pytest.raises(ConfigError, match='it has no split "dev"'):
        task_sets(*given, "data.heldout_split=dev")
    with pytest.raises(ConfigError, match=r"data\.heldout_split=train is the split to train on"):
        task_sets(*given, "data.heldout_split=train")
    with pytest.raises(ConfigError, match="which has no splits: give"):
        task_sets(*given[:2], f"data.questions={folder}/train.jsonl", "data.heldout_split=dev")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=hotpotqa"], "data.questions is empty: data=hotpotqa needs data.questions=<file,"),
        (["data=open_qa", "data.questions=q.jsonl"], "data.corpus is empty: data=open_qa needs"),
        (
            ["data=local", "data.questions=q", "data.corpus=c", "data.subset=x"],
            "data.subset have no",
        ),
        (["data=fanoutqa", "data.fanoutqa=all"], "data.fanoutqa='all'"),
        (
            ["data=fanoutqa", "data.questions=q.json"],
            "data.questions=q.json: no such file or folder",
        ),
    ],
)
def test_wrong_settings_say_what_to_change(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        task_sets(*overrides)


# FanOutQA's real questions. Counted in the package's JSON by a program of its own: 310 questions,
# 2193 sub-questions, of which 51 have parts of their own instead of a page and one a blank answer;
# 1594 page titles, one of them only under that blank answer.


def test_the_real_questions_of_fanoutqa_load() -> None:
    sets = task_sets("data=fanoutqa", "data.objectives=1")
    rows = [*sets.train, *sets.heldout]
    assert (len(rows), sets.skipped_rows) == (2141, 1)
    assert len({task.id for task in rows}) == 2141
    assert len({task.id.split("/")[0] for task in rows}) == 310
    pages = sets.retrievers["fanoutqa"].documents
    assert len({document.title for document in pages}) == len(pages) == 1593
    first = next(task for task in rows if task.id == "7dcbbbdc7f1120cd/739617a754ded71f")
    assert first.objectives[0].question == "What is the batting hand of Pat Burrell?"
    assert first.objectives[0].golds == ("Right",)
    # The real retriever finds the page of a sub-question, and it tells the answer.
    found = sets.retrievers["fanoutqa"].search(first.question, 5)
    assert "Pat Burrell" in [passage.title for passage in found]
    assert len(task_sets("data=fanoutqa", "data.fanoutqa=questions").train) > 100


def test_an_agent_answers_the_real_questions_of_fanoutqa() -> None:
    """A scripted agent searches for every objective and answers what the passages told it."""
    overrides = ["data=fanoutqa", "data.objectives=2", "data.fanoutqa=siblings"]
    config = compose("train", [*overrides, "retriever.top_k=5", "retriever.title_weight=1"])
    sets = load_task_sets(config)
    tasks = sets.heldout[:6]
    scripts = {}
    for number, task in enumerate(tasks):
        one, two = task.objectives
        scripts[f"{number}/0"] = [
            f"<think>1</think><search>{one.question}</search>",
            f"<mem>{one.golds[0]}</mem><think>2</think><search>{two.question}</search>",
            f"<mem>all</mem><think>3</think><answer>{task.gold}</answer>",
        ]
    conversation = make_conversation("tags")
    rollout = Rollout(
        ScriptedEngine(conversation, scripts),
        conversation,
        ToolBox(sets.retrievers, config.retriever),
        jinja2.Template("{{ question }}"),
    )
    limits = AgentSettings("full", 8, 20_000, 2_000, 4_000)
    trajectories = rollout.collect(tasks, 1, limits, Sampling())
    assert len(trajectories) == 6
    for trajectory in trajectories:
        assert trajectory.ending == "answered"
        assert trajectory.metrics["exact_match"] == 1.0
        for objective, turn in zip(trajectory.task.objectives, trajectory.rounds, strict=False):
            assert objective.question in (turn.observation or "")
            assert objective.golds[0] in (turn.observation or "")


# Real files of other shapes, where they are


@needs_real_files
def test_the_real_parquet_file() -> None:
    loaded = load_questions(QuestionSource("search_r1", str(REAL / "agentic_qa_dev.parquet")))
    tasks = loaded.tasks
    assert list(loaded.told.sentences()) == []
    sources = Counter(task.source for task in tasks)
    assert len(tasks) == 875
    assert set(sources.values()) == {125}
    assert set(sources) == {"nq", "tq", "popqa", "hotpotqa", "2wiki", "musique", "Bamboogle"}
    assert sum(len(task.objectives[0].golds) for task in tasks) == 2749
    assert sum(len(task.objectives[0].golds) > 1 for task in tasks) == 265
    dan = next(task for task in tasks if task.id == "popqa/popqa_4174473")
    assert dan.question == "Who is the father of Dan?"
    assert dan.objectives[0].golds[:2] == ("Jacob", "Israel")


@needs_real_files
def test_golds_of_the_real_parquet_file_that_hold_a_semicolon(corpus: Path) -> None:
    """Seen in the file itself: every alias of every row that holds ``;``."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(REAL / "agentic_qa_dev.parquet").to_pylist()
    held = sum(";" in row["reward_model"]["ground_truth"] for row in rows)
    assert 0 < held < 13
    sets = task_sets(
        "data=search_r1",
        f"data.questions={REAL / 'agentic_qa_dev.parquet'}",
        f"data.corpus={corpus}",
        "data.objectives=2",
    )
    (note,) = sets.notes
    assert note.startswith(f'{held} rows hold ";" in a gold and were left out')
    assert len(sets.train) + len(sets.heldout) in ((875 - held) // 2, (875 - held) // 2 - 1)
    assert not any(";" in one for t in sets.train for o in t.objectives for one in o.golds)


@needs_real_files
def test_the_real_multi_hop_questions() -> None:
    sets = task_sets(
        "data=hotpotqa",
        f"data.questions={REAL / 'multihop_questions.jsonl'}",
        f"data.corpus={REAL / 'multihop_corpus.jsonl'}",
        "data.objectives=1",
    )
    assert len(sets.train) + len(sets.heldout) == 49
    assert Counter(task.source for task in [*sets.train, *sets.heldout]) == {
        "hotpotqa": 29,
        "2wikimultihopqa": 20,
    }
    assert len(sets.retrievers["hotpotqa"].documents) == 245
