"""The teacher that knows the answers, round by round (specification section 2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mempo.agent.protocol import parse_round
from mempo.collect.__main__ import main
from mempo.collect.gold import GoldTeacher
from mempo.config import ScoringConfig
from mempo.trajectory import Objective, Task
from tests.support.programs import read_lines

RIVER = "Which river does Arnden lie on?"
BORN = "When was Ida Berg born?"
FOUND = (
    "<information>1. Old Arnden: A ruin. Nobody lives there.\n"
    "2. Arnden: Arnden is a town. It lies on the river Sel. It is old.</information>"
)
NOTHING = "<information>1. Ida Berg: A founder. She lived in …</information>"
PAGE = "<information>Ida Berg: A founder. She lived in Arnden. She was born in 1871.</information>"


def teacher(*objectives: Objective) -> GoldTeacher:
    scoring = ScoringConfig(answer_template="<think>{filler}</think><answer>{gold}</answer>")
    task = Task("t", objectives)
    return GoldTeacher({"a": task}, lambda text: [ord(one) for one in text], scoring, str.upper)


def says(it: GoldTeacher, *told: str) -> str:
    """The next round, after the question and what came back."""
    contents = ["the question", *told]
    return it.write_round("a", [{"role": "user", "content": text} for text in contents])


def test_sentences_are_found_kept_and_answered() -> None:
    it = teacher(Objective(RIVER, ("the Sel",)), Objective(BORN, ("1871", "the year 1871")))
    river, born = RIVER.upper(), BORN.upper()
    assert says(it) == f"<think>I search for it: {river}</think><search>{river}</search>"
    noted = f"1. {river} Arnden: It lies on the river Sel."
    assert says(it, FOUND) == (
        f"<mem>{noted} 2. {born} Not known yet.</mem>"
        f"<think>I search for it: {born}</think><search>{born}</search>"
    )
    assert says(it, FOUND, NOTHING) == (
        f"<mem>{noted} 2. {born} Not known yet.</mem>"
        "<think>Ida Berg may say it.</think><access>Ida Berg</access>"
    )
    last = says(it, FOUND, NOTHING, PAGE)
    assert last == (
        f"<mem>{noted} 2. {born} Ida Berg: She was born in 1871.</mem>"
        f"<think>{ScoringConfig().filler}</think><answer>the Sel; 1871</answer>"
    )
    assert parse_round(last, 4).broken_rules == []


def test_what_is_not_found_is_not_answered() -> None:
    it = teacher(Objective(BORN, ("yes",)), Objective(RIVER, ("Sel",)))
    says(it)
    assert says(it, NOTHING).endswith("<access>Ida Berg</access>")
    # "yes" stands in no sentence, and 18710 is not 1871; what answers a later question is kept.
    page = "<information>Ida Berg: Yes, on the Sel. Born in 18710. yes</information>"
    assert says(it, NOTHING, page) == (
        f"<mem>1. {BORN.upper()} Nothing was found. "
        f"2. {RIVER.upper()} Ida Berg: Yes, on the Sel.</mem>"
        f"<think>{ScoringConfig().filler}</think><answer>unknown; Sel</answer>"
    )


def test_its_right_attempts_become_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"question": RIVER, "answer": "Sel"},
        {"question": "Is Arnden a town?", "answer": "yes"},
    ]
    questions, corpus = tmp_path / "q.jsonl", tmp_path / "c.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = "Arnden is a town. It lies on the river Sel."
    corpus.write_text(json.dumps({"id": "1", "title": "Arnden", "text": text}) + "\n")
    output = tmp_path / "gold.jsonl"
    arguments = ["--teacher", "gold", "--output", str(output), "--data", str(questions)]
    shared = ["data.heldout_questions=" + str(questions), "callbacks.progress_bars=false"]
    main([*arguments, f"data.corpus={corpus}", *shared])
    (row,) = read_lines(output)
    assert (row["teacher"], row["question"], row["reward"]) == ("gold", RIVER, 1.0)
    assert row["messages"][3]["content"].startswith(
        f"<mem>1. {RIVER} Arnden: It lies on the river Sel.</mem>"
    )
    told = capsys.readouterr().out
    assert "2 questions, 1 attempts each" in told
    assert "kept 1 of 2 attempts, at 1 of 2 questions (of the others 1 never right)" in told
