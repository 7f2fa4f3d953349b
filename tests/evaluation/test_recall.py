"""The share of questions whose passages are found (around section 11; docs/retrieval.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mempo.command.cli import compose
from mempo.command.recall import main
from mempo.data.formats import Options, QuestionSource, load_questions
from mempo.data.tasks import load_evidence
from mempo.evaluation.recall import measure
from mempo.retrieval import Document, RankBm25Retriever
from mempo.retrieval.build import build_index
from mempo.row_files.rows import DataError
from mempo.runtime.errors import ConfigError
from mempo.runtime.progress import progress_bar

FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats"


def document(number: int, title: str, text: str) -> Document:
    return Document(str(number), title, text)


def test_shares_count_questions_and_titles() -> None:
    # Titles are no query's words, and each colour stands in one passage of five words.
    retriever = RankBm25Retriever(
        [
            document(0, "One", "red and so on"),
            document(1, "Two", "blue and so on"),
            document(2, "Three", "green and so on"),
            document(3, "Four", "white and so on"),
            document(4, "Five", "black and so on"),
        ]
    )
    questions = [
        ("red", ["one"]),  # found first, in another case
        ("blue blue red", ["One", "Two"]),  # Two first, One second
        ("green green green white white black", ["Five", "Three", "Gone"]),  # first, third, never
        ("purple", ["Four"]),  # nothing is found
    ]
    with progress_bar("searches", 4, enabled=False) as bar:
        recall = measure(questions, retriever, bar, cutoffs=(1, 2, 3))
    assert recall.questions == 4
    assert recall.every == {1: 1 / 4, 2: 2 / 4, 3: 2 / 4}
    assert recall.some == {1: 3 / 4, 2: 3 / 4, 3: 3 / 4}
    assert recall.titles == pytest.approx(
        {1: (1 + 1 / 2 + 1 / 3) / 4, 2: (2 + 1 / 3) / 4, 3: (2 + 2 / 3) / 4}
    )
    assert (recall.absent, recall.wanted) == (1, 7)  # Gone; "one" and "One" are two names


@pytest.mark.parametrize(
    ("name", "file", "options", "expected"),
    [
        (
            "hotpotqa",
            "hotpotqa.json",
            Options(),
            {
                "5a00000000000000000000a1": ("Amber Works", "Nila Orr"),
                "5a00000000000000000000a2": ("Tolm", "Velm"),
            },
        ),
        (
            "musique",
            "musique.jsonl",
            Options(),
            {"2hop__10_20": ("Low Tide", "Amber Works"), "2hop__11_21": ("Amber Works", "Tolm")},
        ),
        (
            "hotpotqa",
            "hotpotqa_hub.jsonl",
            Options(),
            {"h1": ("Amber Works", "Nila Orr"), "h2": ("Velm",)},
        ),
        (
            "fanoutqa",
            "fanoutqa.json",
            Options(),
            {
                "q1/s1": ("Amber Works",),
                "q1/s2": ("Nila Orr",),
                "q1/s4": ("Tam Reed",),
                "q2/s1": ("Tolm",),
                "q2/s2": ("Tolm",),
                "q2/s3": ("List of towns",),
            },
        ),
        (
            "fanoutqa",
            "fanoutqa.json",
            Options(fanoutqa="questions"),
            {"q1": ("Amber Works", "Nila Orr", "Tam Reed"), "q2": ("Tolm", "List of towns")},
        ),
    ],
)
def test_the_passages_that_a_row_names(
    name: str, file: str, options: Options, expected: dict[str, tuple[str, ...]]
) -> None:
    source = QuestionSource(name, str(FIXTURES / file))
    assert load_questions(source, options, with_evidence=True).evidence == expected
    assert load_questions(source, options).evidence == {}


ROW: dict[str, object] = {"id": "r1", "question": "Who founded Amber Works?", "answer": "Nila Orr"}


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_command_over_an_index_on_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write(
        tmp_path / "corpus.jsonl",
        {"id": "0", "contents": "Amber Works\nIt was founded by Nila Orr."},
        {"id": "1", "contents": "Nila Orr\nAn engineer, born in Tolm."},
        {"id": "2", "contents": "Velm\nA town with a hall."},
        {"id": "3", "contents": "Tolm\nOn the Ister."},
    )
    questions = write(
        tmp_path / "questions.jsonl",
        {**ROW, "titles": ["Amber Works", "Low Tide"]},
        {**ROW, "id": "r2", "question": "Which town has a hall?", "titles": ["Velm"]},
        {**ROW, "id": "r3"},
    )
    build_index(corpus, tmp_path / "corpus.bm25s")
    main(
        ["data=hotpotqa", f"data.questions={questions}", f"data.corpus={corpus}", "retriever=bm25s"]
    )
    printed = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in printed.splitlines()
        if line.startswith("│")
    ]
    # Amber Works and Velm are the only passages with words of their questions; Low Tide is nowhere.
    assert rows == [[str(n), "50.0 %", "100.0 %", "75.0 %"] for n in (1, 3, 5, 10)]
    assert "Passages found, 2 questions" in printed
    assert "retriever=bm25s retriever.title_weight=1" in printed
    assert "1 questions name no passages and were left out" in printed
    assert "1 of 3 titles are not in the corpus" in printed


@pytest.mark.parametrize("value", [7, ["Tolm", 3], {"titles": ["Tolm"]}, "Tolm", [[]], [" "]])
def test_titles_of_another_shape_are_named_only_where_they_are_asked_for(
    tmp_path: Path, value: object
) -> None:
    file = str(write(tmp_path / "q.jsonl", {**ROW, "supporting_facts": value}))
    assert len(load_questions(QuestionSource("hotpotqa", file)).tasks) == 1
    with pytest.raises(DataError, match=r'q.jsonl:1: the field "supporting_facts" '):
        load_questions(QuestionSource("hotpotqa", file), with_evidence=True)


def test_questions_without_named_passages_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", ROW)
    corpus = write(tmp_path / "c.jsonl", {"id": "0", "contents": "Velm\nA town."})
    files = [f"data.questions={file}", f"data.corpus={corpus}"]
    with pytest.raises(ConfigError, match="no row names the passages that answer it"):
        load_evidence(compose("evaluate", ["data=hotpotqa", *files]))
    with pytest.raises(
        ConfigError, match=r"data=open_qa: .* these formats do: hotpotqa, musique, fanoutqa"
    ):
        load_evidence(compose("evaluate", ["data=open_qa", *files]))


def test_a_misspelled_setting_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["data.question=q.jsonl"])
    assert "data.question" in capsys.readouterr().err
