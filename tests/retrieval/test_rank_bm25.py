"""Search, pages and corpora (specification sections 3 and 11)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from mempo.retrieval import Document, RankBm25Retriever, read_corpus
from mempo.retrieval.rank_bm25 import words
from mempo.row_files.rows import DataError
from mempo.world.world import World, generate_world
from tests.support.pages import known_page


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(0, 300, "train")


@pytest.fixture(scope="module")
def retriever(world: World) -> RankBm25Retriever:
    return RankBm25Retriever(world.documents)


def documents(*texts: str) -> list[Document]:
    return [Document(str(i), f"T{i}", text) for i, text in enumerate(texts)]


def test_scores_are_those_of_rank_bm25(world: World, retriever: RankBm25Retriever) -> None:
    reference = BM25Okapi(
        [words(f"{document.title} {document.search_text}") for document in world.documents]
    )
    queries = [task.question for task in world.tasks(30, 2, 1, 3, 0)]
    for query in [*queries, "was was born", "zzz", "The mayor, the MAYOR"]:
        assert np.array_equal(retriever.scores(query), reference.get_scores(words(query)))


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=6).map(" ".join), min_size=1, max_size=8),
    st.lists(st.sampled_from("abcdefz"), max_size=5).map(" ".join),
)
def test_any_small_corpus_scores_as_rank_bm25_does(texts: list[str], query: str) -> None:
    corpus = documents(*texts)
    reference = BM25Okapi([words(f"{d.title} {d.text}") for d in corpus])
    retriever = RankBm25Retriever(corpus)
    assert np.array_equal(retriever.scores(query), reference.get_scores(words(query)))
    found = retriever.search(query, 3)
    matching = {d.title for d in corpus if set(words(f"{d.title} {d.text}")) & set(words(query))}
    assert {passage.title for passage in found} <= matching
    assert len(found) == min(3, len(matching))
    scores = {d.title: s for d, s in zip(corpus, retriever.scores(query), strict=True)}
    assert [scores[p.title] for p in found] == sorted(scores[p.title] for p in found)[::-1]


def test_equal_scores_keep_the_corpus_order() -> None:
    retriever = RankBm25Retriever(documents("red sky", "other", "red sky", "words", "red sky"))
    assert [p.title for p in retriever.search("red", 5)] == ["T0", "T2", "T4"]
    assert [p.title for p in retriever.search("red", 2)] == ["T0", "T2"]
    texts = ["red sky", "grey sky", "red red", "blue sky", "dark sea"]
    many = RankBm25Retriever(documents(*texts * 100))
    expected = [*(f"T{5 * i + 2}" for i in range(100)), *(f"T{5 * i}" for i in range(100))]
    assert [p.title for p in many.search("red", 200)] == expected


def test_nothing_is_found_without_a_shared_word(retriever: RankBm25Retriever) -> None:
    assert retriever.search("qqqq", 5) == []
    assert retriever.search("", 5) == []
    assert retriever.search("?!", 5) == []


def test_a_corpus_of_one_document_is_searchable() -> None:
    retriever = RankBm25Retriever([Document("0", "Tolm", "A town.")])
    assert [p.title for p in retriever.search("tolm", 5)] == ["Tolm"]


def test_documents_without_a_word_and_empty_corpora() -> None:
    assert RankBm25Retriever([Document("0", "?", "!")]).search("tolm", 5) == []
    with pytest.raises(ValueError, match="no documents"):
        RankBm25Retriever([])


def test_the_world_shows_passages_in_search_and_pages_on_access(
    world: World, retriever: RankBm25Retriever
) -> None:
    document = world.documents[0]
    (first, *_) = retriever.search(document.title, 5)
    assert first.title == document.title
    assert first.text == document.passage
    page = retriever.open_page(document.title)
    assert page is not None
    assert page.text == document.text
    assert len(page.text) > len(first.text)


@pytest.mark.parametrize(
    "key",
    ["Upper Tolm", "upper TOLM", ' "Upper Tolm" ', "'upper tolm'", "http://x/T", "HTTP://X/t"],
)
def test_pages_open_by_title_or_url(key: str) -> None:
    retriever = RankBm25Retriever([Document("0", "Upper Tolm", "A town.", "http://x/T")])
    page = retriever.open_page(key)
    assert page is not None
    assert page.title == "Upper Tolm"


def test_unknown_pages_and_exact_titles_first() -> None:
    retriever = RankBm25Retriever(
        [
            Document("0", "TOLM", "Shouted."),
            Document("1", "Tolm", "Said."),
            Document("2", '"Q"', "x"),
        ]
    )
    assert retriever.open_page("tol") is None
    assert retriever.open_page("") is None
    assert retriever.open_page('""') is None
    assert known_page(retriever, "Tolm").text == "Said."
    assert known_page(retriever, '"Q"').text == "x"


def test_passages_with_one_title_are_one_page() -> None:
    retriever = RankBm25Retriever(
        [Document("0", "Tolm", "One."), Document("1", "Bel", "x"), Document("2", "Tolm", "Two.")]
    )
    assert known_page(retriever, "Tolm").text == "One.\nTwo."


def test_threads_share_a_retriever(world: World, retriever: RankBm25Retriever) -> None:
    queries = [task.question for task in world.tasks(200, 1, 1, 2, 0)]
    alone = [retriever.search(query, 5) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: retriever.search(query, 5), queries)) == alone


def test_both_corpus_forms(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [
        {"id": "0", "contents": '"Give Peace a Chance"\nA song.\nBy Lennon.'},
        {"id": 1, "contents": 'He said "no"\nA play.'},
        {"id": "2", "title": "Tolm", "text": "A town.", "url": "http://x/Tolm"},
        {"id": "3", "title": "Bel", "text": "Whole page.", "passage": "Short."},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8-sig")
    first, second, third, fourth = read_corpus(path)
    assert first == Document("0", "Give Peace a Chance", "A song.\nBy Lennon.")
    assert second.title == 'He said "no"'
    assert second.id == "1"
    assert third == Document("2", "Tolm", "A town.", "http://x/Tolm")
    assert (fourth.search_text, fourth.text) == ("Short.", "Whole page.")


GOOD = b'{"id": "0", "contents": "T\\ntext"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{oops}\n", "not JSON"),
        (b"\n", "line is blank"),
        (b"[1]\n", "no JSON object"),
        (b"\xff\xfe\n", "not UTF-8"),
        (b'{"id": true, "contents": "T\\nx"}\n', 'field "id" must be'),
        (b'{"id": "1"}\n', 'give the field "contents"'),
        (b'{"id": "1", "contents": ""}\n', '"contents" is blank'),
        (b'{"id": "1", "contents": 5}\n', '"contents" must be a text'),
        (b'{"id": "1", "title": "T"}\n', 'field "text" is missing'),
        (b'{"id": "1", "text": "x"}\n', 'field "title" is missing'),
        (b'{"id": "1", "title": 5, "text": "x"}\n', '"title" must be a text'),
        (b'{"id": "1", "title": "T", "text": ["x", 1]}\n', '"text" must hold texts'),
        (b'{"id": "1", "title": "T", "text": [" "]}\n', '"text" is blank'),
        (b'{"id": "1", "title": "T", "text": null}\n', 'field "text" is missing'),
        (b'{"id": "1", "contents": "T\\nx \\ud83d"}\n', r'"contents" holds \\ud83d, half a char'),
        (b'{"id": "1", "title": "\\udc19", "text": "x"}\n', r'"title" holds \\udc19, half a char'),
        (b'{"id": "0", "contents": "U\\ny"}\n', 'id "0" stands already on line 1'),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD + line + GOOD.replace(b'"0"', b'"9"'))
    with pytest.raises(DataError, match=message) as caught:
        read_corpus(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_empty_and_missing_corpora(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        read_corpus(path)
