"""Golds that are a list written as text: read, or refused with the row, never one literal gold
(specification section 11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mempo.data.formats import Loaded, Options, QuestionSource, load_questions
from mempo.row_files.rows import DataError

READ = [
    ('["Ana Vale", "A. Vale"]', ("Ana Vale", "A. Vale")),
    ("['Ben Orr', \"B. O'Rourke\"]", ("Ben Orr", "B. O'Rourke")),
    ("['Olivia Reed' 'Olivia']", ("Olivia Reed", "Olivia")),
    ("['Olivia Reed'\n 'Olivia']", ("Olivia Reed", "Olivia")),
    ("array(['a', \"b'c\"], dtype=object)", ("a", "b'c")),
    ("array(['a'],\n      dtype='<U3')", ("a",)),
    ("[np.str_('a'), np.str_('b')]", ("a", "b")),
    ("('a', 'b')", ("a", "b")),
    ("{'a'}", ("a",)),
    ("['1873', 1874]", ("1873", "1874")),
    (r"['it\'s', 'caf\xe9']", ("it's", "café")),
]

TEXTS = ["[A]", "[a] tag", "[The] Band", "[0, 1)", "('Til You Do", "('a')", "(a, b)", "{x}", "a, b"]

REFUSED = [
    ("['a', 'b'", "looks like a list but is not JSON or Python"),
    ("['a', 'b'] and more", "looks like a list but is not JSON or Python"),
    ("['a' ... 'b']", "looks like a list but is not JSON or Python"),
    ("['a', None]", "looks like a list but is not JSON or Python"),
    ("['a''b']", "looks like a list but is not JSON or Python"),
    ("[0, 1]", "is a list of numbers, or an interval"),
    ('{"value": "a"', "is an object written as a text"),
    ("{'value': 'a'}", "is an object written as a text"),
    (r'["\ud83d"]', r"holds \\ud83d, half a character"),
    ('["a", ["b"]]', "holds a list of 1"),
    ('["a", " "]', "a blank answer"),
]

FORMATS = ["local", "search_r1", "asearcher", "hotpotqa", "musique", "open_qa"]


def load(tmp_path: Path, name: str, answer: Any, skip: bool = False) -> Loaded:
    row = {"id": "a", "question": "Q?", "answer": answer}
    if name == "search_r1":
        row = {"id": "a", "question": "Q?", "reward_model": {"ground_truth": {"target": answer}}}
    path = tmp_path / "rows.jsonl"
    good = json.dumps({**row, "id": "g", "answer": "A", "golden_answers": ["A"]})
    if name == "search_r1":
        good = json.dumps({"id": "g", "question": "Q?", "golden_answers": ["A"]})
    path.write_text(good + "\n" + json.dumps(row) + "\n", encoding="utf-8")
    return load_questions(QuestionSource(name, str(path)), Options(skip_bad_rows=skip))


@pytest.mark.parametrize("name", FORMATS)
def test_written_lists_are_read_and_told(tmp_path: Path, name: str) -> None:
    for text, golds in READ:
        if name == "local" and "1874" in text:
            continue  # our own format asks for numbers in quotes
        for answer in (text, [text]):
            loaded = load(tmp_path, name, answer)
            assert loaded.tasks[1].objectives[0].golds == golds, text
            assert list(loaded.told.sentences()) == [
                "1 rows hold their answers as a list written in a text: it was read as a list "
                f"(the first: {tmp_path}/rows.jsonl:2)"
            ]


@pytest.mark.parametrize("name", FORMATS)
def test_other_brackets_are_texts(tmp_path: Path, name: str) -> None:
    for text in TEXTS:
        loaded = load(tmp_path, name, text)
        assert loaded.tasks[1].objectives[0].golds == (text,)
        assert list(loaded.told.sentences()) == []


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_be_read_is_refused_with_its_row(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    if name == "local" and text == '["a", ["b"]]':
        message = "must be a text or a list of texts"
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, name, text)
    assert str(caught.value).startswith(f"{tmp_path}/rows.jsonl:2: ")
    loaded = load(tmp_path, name, text, skip=True)
    assert (len(loaded.tasks), loaded.skipped) == (1, 1)
