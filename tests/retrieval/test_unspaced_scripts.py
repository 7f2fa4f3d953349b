"""Search in scripts that write no spaces, in every retriever: characters and pairs of them
(specification section 11)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config import RetrieverConfig
from mempo.retrieval import Bm25sRetriever, HttpRetriever, RankBm25Retriever, read_corpus
from mempo.retrieval.build import build_index
from mempo.retrieval.index_files import MANIFEST, IndexFileError
from mempo.retrieval.words import TOKENIZER, query_words, words
from tests.support.servers import our_server

CAPITALS = [
    {"id": "1", "contents": "東京\n東京は日本の首都です。"},
    {"id": "2", "contents": "京都\n京都は古い都です。"},
    {"id": "3", "contents": "北京\n北京是中国的首都。"},
]
OTHERS = [
    {"id": "4", "contents": "手机\n我的iPhone手机壳2024年坏了。"},
    {"id": "5", "contents": "กรุงเทพ\nกรุงเทพเป็นเมืองหลวงของประเทศไทย"},
    {"id": "6", "contents": "ພາສາລາວ\nນະຄອນຫຼວງວຽງຈັນ"},
    {"id": "7", "contents": "ភ្នំពេញ\nភ្នំពេញជារាជធានី"},
    {"id": "8", "contents": "コンピュータ\nｶﾞｷﾞ と か\u3099き"},
    {"id": "9", "contents": "서울\n서울은 대한민국의 수도 이다."},
    {"id": "10", "contents": "Zürich\nA town by a lake, phone 2024."},
]


def write_corpus(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module", params=["rank_bm25", "bm25s", "http"])
def search(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], set[str]]]:
    """The ids that a retriever of each kind finds."""
    folder = tmp_path_factory.mktemp(request.param)
    corpus = write_corpus(folder / "c.jsonl", [*CAPITALS, *OTHERS])
    build_index(corpus, folder / "i", part_words=60)  # several parts
    on_disk = Bm25sRetriever(corpus, folder / "i")
    assert len(list((folder / "i").glob("part-*"))) > 1
    in_memory = RankBm25Retriever(read_corpus(corpus))
    if request.param == "http":
        with our_server(lambda: on_disk) as url:
            remote = HttpRetriever(RetrieverConfig(kind="http", url=url))
            remote.wait_until_ready()
            yield lambda query: {found.id for found in remote.search(query, 20)}
        return
    retriever = on_disk if request.param == "bm25s" else in_memory
    yield lambda query: {found.id for found in retriever.search(query, 20)}


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("首都", "1 3"),
        ("東京", "1"),
        ("古い", "2"),  # across two scripts
        ("京", "1 2 3"),  # a single character
        ("都", "1 2 3"),
        ("壳", "4"),
        ("京東", ""),  # the order counts
        ("手机", "4"),
        ("手機", ""),
        ("iPhone手机", "4"),
        ("iphone", "4"),
        ("IPHONE", "4"),
        ("2024年", "4 10"),
        ("phone", "10"),  # no part of a word in a script with spaces
        ("เมืองหลวง", "5"),
        ("ไทย", "5"),
        ("ວຽງຈັນ", "6"),
        ("រាជធានី", "7"),
        ("ピュータ", "8"),
        ("ガギ", "8"),  # narrow katakana
        ("がき", "8"),  # a decomposed character
        ("수도", "9"),  # Korean writes spaces
        ("서", ""),
        ("zürich", "10"),
        ("首都 lake", "1 3 10"),
        ("。", ""),
    ],
)
def test_a_query_finds_a_word_inside_a_run_of_characters(
    search: Callable[[str], set[str]], query: str, ids: str
) -> None:
    assert search(query) == set(ids.split())


def test_words_worked_out_by_hand() -> None:
    assert words("iPhone手机壳!") == ["iphone", "手", "机", "壳", "手机", "机壳"]
    assert query_words("iPhone手机壳!") == ["iphone", "手机", "机壳"]
    assert words("2024年") == query_words("2024年") == ["2024", "年"]
    assert words("東京、日") == ["東", "京", "東京", "日"]
    assert query_words("東京、日") == ["東京", "日"]
    assert words("กิน") == ["ก", "ิ", "น", "กิ", "ิน"]  # the vowel sign belongs to the run


@given(st.text(st.characters(max_codepoint=0xDFF)))
def test_a_text_in_scripts_with_spaces_has_the_words_that_it_had(text: str) -> None:
    assert words(text) == query_words(text) == re.findall(r"\w+", text.lower())


@given(st.text(st.sampled_from("東京都aé1 ,กิ한")), st.integers(0, 9), st.integers(1, 9))
def test_every_stretch_of_a_text_finds_the_text(text: str, start: int, length: int) -> None:
    """Of characters that stand in one form only, whole words where there are spaces."""
    stretch = text[start : start + length]
    if re.search(r"[aé1한]", stretch):
        stretch = text
    assert set(query_words(stretch)) <= set(words(text))


def test_scores_in_memory_and_on_disk_are_the_same(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", [*CAPITALS, *OTHERS])
    build_index(corpus, tmp_path / "i", title_weight=2)
    on_disk = Bm25sRetriever(corpus, tmp_path / "i", title_weight=2)
    in_memory = RankBm25Retriever(read_corpus(corpus), title_weight=2)
    for query in ("首都", "東京 iPhone手机", "京", "都です"):
        found, wanted = on_disk.search(query, 5), in_memory.search(query, 5)
        assert [p.id for p in found] == [p.id for p in wanted]
        scores = [np.array([p.score for p in part], float) for part in (found, wanted)]
        assert np.allclose(scores[0], scores[1], rtol=1e-6)


def test_an_index_from_before_the_pairs_is_told_and_built_again(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", CAPITALS), tmp_path / "i"
    build_index(corpus, index)
    manifest = json.loads((index / MANIFEST).read_text())
    assert manifest.pop("tokenizer") == TOKENIZER
    for older in (manifest, manifest | {"tokenizer": TOKENIZER - 1}):
        (index / MANIFEST).write_text(json.dumps(older))
        with pytest.raises(IndexFileError, match="build it again") as caught:
            Bm25sRetriever(corpus, index)
        assert f"run `python -m mempo.retrieval.build {corpus} {index}`" in str(caught.value)
        assert build_index(corpus, index)
        assert [p.id for p in Bm25sRetriever(corpus, index).search("古い", 5)] == ["2"]
