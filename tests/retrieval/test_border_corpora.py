"""Corpora in the shapes that people have: passages, titles and counts that each file must give
(specification section 11)."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mempo.retrieval import Bm25sRetriever, IndexFileError, RankBm25Retriever, read_corpus
from mempo.retrieval.build import build_index
from mempo.retrieval.corpus import LEFT_OUT, NO_ID, NO_TITLE
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from tests.support.border_files import borders
from tests.support.pages import known_page

CORPORA = borders("corpora")
EXPECTED: dict[str, dict[str, Any]] = json.loads(
    (CORPORA / "expected.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_corpus_gives_its_passages(name: str) -> None:
    wanted, told = EXPECTED[name], Told()
    found = read_corpus(CORPORA / name, told=told)
    assert len(found) == wanted["passages"]
    assert sum(not one.title for one in found) == told.count(NO_TITLE)
    blank = 1 if name == "anserini.jsonl" else 0
    assert told.count(NO_TITLE) == wanted.get("blank_titles", blank)
    assert told.count(NO_ID) == (2 if name == "list.json" else 0)
    assert found[0].text == wanted.get("first_text", found[0].text)
    assert found[0].title == wanted.get("title", found[0].title)
    assert found[0].url == wanted.get("url", "")
    for query, ids in wanted.get("search", {}).items():
        assert {one.id for one in RankBm25Retriever(found).search(query, 3)} == set(ids)


def test_every_corpus_is_expected() -> None:
    assert {path.name for path in CORPORA.iterdir()} - {"expected.json"} == set(EXPECTED)
    known = {"passages", "blank_titles", "first_text", "title", "url", "search", "note"}
    assert all(set(one) <= known for one in EXPECTED.values())


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        (
            "beir.jsonl",
            [("d1", "Amber Works", "Founded by Lena Holt."), ("d2", "", "No title here.")],
        ),
        (
            "psgs_w100.tsv",
            [
                ("1", "Amber Works", 'Amber Works was founded by Lena Holt, "the Elder".'),
                ("2", "Amber Works", "A second part"),
            ],
        ),
        (
            "list.json",
            [("list-1", "Amber Works", "Founded."), ("list-2", "Lena Holt", "Born in Orla.")],
        ),
        ("anserini.jsonl", [("doc1", "", "Amber Works was founded by Lena Holt.")]),
        (
            "kilt_pages.jsonl",
            [("290", "A", "A is the first letter.\nSection::::History.\nIt is old.")],
        ),
        ("wiki18_url.jsonl", [("1", "Amber Works", "Founded by Lena Holt.")]),
        ("corpus.jsonl.gz", [("1", "Orla", "A town.")]),
    ],
)
def test_the_documents_themselves(name: str, documents: list[tuple[str, str, str]]) -> None:
    found = read_corpus(CORPORA / name)
    assert [(one.id, one.title, one.text) for one in found] == documents


def test_a_page_without_title_is_shown_and_opened_by_id() -> None:
    retriever = RankBm25Retriever(read_corpus(CORPORA / "anserini.jsonl"))
    (found,) = retriever.search("amber", 5)
    assert found.title == "doc1"
    assert known_page(retriever, "doc1").text == "Amber Works was founded by Lena Holt."


def test_what_is_guessed_is_printed_where_nobody_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = CORPORA / "list.json"
    read_corpus(path)
    assert capsys.readouterr().err == (
        "2 rows of the corpus have no id: they are named after their place in the file "
        f"(the first: {path}:1, row 1)\n"
    )


def test_bad_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    rows = ['{"id": "1", "contents": "T\\nx"}', "oops", "", '{"id": "2"}']
    rows += ['{"id": "1", "contents": "U\\ny"}', '{"id": "3", "contents": "V\\nz"}', "", ""]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz:2: the line is not JSON"):
        read_corpus(path)
    told = Told()
    assert [one.id for one in read_corpus(path, skip_bad_rows=True, told=told)] == ["1", "3"]
    assert told.count(LEFT_OUT) == 4
    assert "corpus.jsonl.gz:2: the line is not JSON" in next(told.sentences())
    path.write_bytes(gzip.compress(b"oops\n"))
    with pytest.raises(DataError, match="none of its 1 rows can be used"):
        read_corpus(path, skip_bad_rows=True)


# The same through an index on disk


@pytest.mark.parametrize("name", EXPECTED)
def test_an_index_finds_and_opens_the_same(tmp_path: Path, name: str) -> None:
    build_index(CORPORA / name, tmp_path / "index")
    index = Bm25sRetriever(CORPORA / name, tmp_path / "index")
    documents = read_corpus(CORPORA / name, told=Told())
    memory = RankBm25Retriever(documents)
    assert index.passages == len(documents)
    for document in documents:
        for key in (document.name, document.url or document.name):
            assert index.open_page(key) == memory.open_page(key) != None  # noqa: E711
        assert index.search(document.text, 3) == memory.search(document.text, 3)
    index.close()


def test_an_index_of_a_packed_corpus_tells_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    rows = ['{"id": "1", "contents": "T\\nred"}', "oops", '{"id": "1", "contents": "U\\nblue"}']
    rows += ['{"id": "3", "contents": "V\\ngreen"}', ""]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz:2: the line is not JSON"):
        build_index(path, tmp_path / "index")
    assert list(tmp_path.iterdir()) == [path]
    assert build_index(path, tmp_path / "index", skip_bad_rows=True)
    assert "2 rows of the corpus cannot be read and were left out" in capsys.readouterr().err
    index = Bm25sRetriever(path, tmp_path / "index")
    assert index.passages == 2
    assert [one.title for one in index.search("green", 1)] == ["V"]
    index.close()
    os.utime(path, ns=(1, 1))  # the contents tell
    assert not build_index(path, tmp_path / "index")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IndexFileError, match="was built from another text"):
        Bm25sRetriever(path, tmp_path / "index")


def test_lines_are_counted_after_what_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "corpus.tsv"
    rows = ["id\ttext\ttitle", "1\tred\tT", "oops", "1\tblue\tU", ""]
    path.write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"corpus\.tsv:4: the id \"1\" stands already on line 2"):
        build_index(path, tmp_path / "index", skip_bad_rows=True)


def test_an_index_without_bad_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "corpus.tsv"
    rows = ["id\ttext\ttitle", "1\tred\tT", "oops", "2\tblue\tU", "", "\tgreen\tV", "3\tx", ""]
    path.write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(DataError, match=r"corpus\.tsv:3: the row has 1 cells"):
        build_index(path, tmp_path / "index")
    build_index(path, tmp_path / "index", skip_bad_rows=True)
    told = capsys.readouterr().err
    assert (
        "3 rows of the corpus cannot be read and were left out (data.skip_bad_rows) "
        f"(the first: {path}:3: the row has 1 cells"
    ) in told
    assert "1 rows of the corpus have no id" in told
    index = Bm25sRetriever(path, tmp_path / "index")
    assert index.passages == 3
    found = [index.search(word, 1)[0] for word in ("red", "blue", "green")]
    assert [(one.title, one.text) for one in found] == [("T", "red"), ("U", "blue"), ("V", "green")]
    index.close()
