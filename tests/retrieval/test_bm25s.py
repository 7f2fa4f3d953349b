"""The index on disk (specification section 11): built once, resumed, refused when stale, and
searched as rank_bm25 is."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Never

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo.retrieval import (
    Bm25sRetriever,
    IndexFileError,
    Passage,
    RankBm25Retriever,
    build,
    part_files,
    read_corpus,
)
from mempo.retrieval.bm25s import default_index
from mempo.retrieval.build import build_index, main
from mempo.retrieval.index_files import MANIFEST, key_hash
from mempo.retrieval.postings import Postings
from mempo.row_files.rows import DataError
from mempo.world.world import generate_world
from tests.support.pages import known_page

ROOT = Path(__file__).resolve().parents[2]


def write_corpus(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def passages(*texts: str) -> list[dict[str, str]]:
    return [{"id": str(i), "contents": f"T{i}\n{text}"} for i, text in enumerate(texts)]


def indexed(corpus: Path, **settings: Any) -> Bm25sRetriever:
    build_index(corpus, default_index(corpus), **settings)
    return Bm25sRetriever(corpus, default_index(corpus), settings.get("title_weight", 1))


def numbered(count: int) -> list[dict[str, str]]:
    """Passages whose words follow from their number: passage i alone holds ``only<i>``."""
    return [
        {
            "id": f"p{i}",
            "contents": f"Title {i}\nonly{i} tens{i // 10} hundreds{i // 100} "
            + " ".join(f"common{(i * step) % 97}" for step in range(1, 30)),
        }
        for i in range(count)
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file but the manifest, which holds the corpus's time of change."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def test_scores_worked_out_by_hand(tmp_path: Path) -> None:
    """Every passage has 3 words with its title, so a word that stands once counts 1 x its weight,
    one that stands twice 2 x 2.5 / (2 + 1.5) = 10/7. "sky" is in 4 of 5 passages: a quarter of the
    mean weight."""
    retriever = indexed(
        write_corpus(
            tmp_path / "c.jsonl",
            passages("red sky", "blue sky", "red red", "dark sky", "grey sky"),
        )
    )
    rare, red, sky = math.log(4.5 / 1.5), math.log(3.5 / 2.5), math.log(1.5 / 4.5)
    common = 0.25 * (8 * rare + red + sky) / 10  # T0 to T4, blue, dark and grey are rare
    assert common == pytest.approx(0.200669, abs=1e-6)
    found = [(passage.id, passage.score) for passage in retriever.search("red sky", 5)]
    expected = [("0", red + common), ("2", red * 10 / 7), ("1", common), ("3", common)]
    assert [name for name, _ in found] == ["0", "2", "1", "3", "4"]
    assert [score for _, score in found[:4]] == pytest.approx([s for _, s in expected], rel=1e-6)
    (twice,) = [p.score for p in retriever.search("blue blue", 1)]
    assert twice == pytest.approx(2 * rare, rel=1e-6)


def same_up_to_ties(
    found: list[Passage], reference: list[Passage], scores: dict[str, float]
) -> bool:
    """Whether both lists hold equal scores place by place, by the reference's own scores."""
    ours = [scores[passage.id] for passage in found]
    theirs = [scores[passage.id] for passage in reference]
    return ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=6).map(" ".join), min_size=1, max_size=9),
    st.lists(st.sampled_from("abcdefz"), max_size=5).map(" ".join),
    st.sampled_from([1, 7, 1000]),
)
def test_any_small_corpus_is_searched_as_rank_bm25_searches_it(
    texts: list[str], query: str, part_words: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = passages(*(f"x {text}" for text in texts))
        corpus = write_corpus(Path(folder) / "c.jsonl", rows)
        retriever = indexed(corpus, part_words=part_words)
        reference = RankBm25Retriever(read_corpus(corpus))
        scores = {str(i): float(score) for i, score in enumerate(reference.scores(query))}
        for top_k in (1, 3, 20):
            found, wanted = retriever.search(query, top_k), reference.search(query, top_k)
            assert len(found) == len(wanted)
            assert same_up_to_ties(found, wanted, scores)
            assert [p.score for p in found] == pytest.approx(
                [p.score for p in wanted], rel=1e-5, abs=1e-6
            )


@pytest.mark.parametrize("part_words", [500, 1_000_000])
def test_the_world_is_searched_as_rank_bm25_searches_it(tmp_path: Path, part_words: int) -> None:
    world = generate_world(0, 300, "train")
    rows = [
        {"id": d.id, "title": d.title, "text": d.text, "passage": d.passage or d.text}
        for d in world.documents
    ]
    corpus = write_corpus(tmp_path / "c.jsonl", rows)
    retriever = indexed(corpus, part_words=part_words, title_weight=3)
    reference = RankBm25Retriever(read_corpus(corpus), title_weight=3)
    ids = [document.id for document in reference.documents]
    for task in world.tasks(60, 2, 1, 3, 0):
        scores = dict(zip(ids, reference.scores(task.question).tolist(), strict=True))
        found, wanted = retriever.search(task.question, 5), reference.search(task.question, 5)
        assert same_up_to_ties(found, wanted, scores)
        assert len(found) == len(wanted) == 5
    (first, *_) = retriever.search(world.documents[0].title, 5)
    assert first == reference.search(world.documents[0].title, 5)[0]


def test_a_corpus_of_10000_passages_is_built_and_searched(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", numbered(10_000))
    retriever = indexed(corpus, part_words=100_000)  # 34 words a passage: parts of 2,942
    assert retriever.passages == 10_000
    assert len(list(default_index(corpus).glob("part-*"))) == 4
    for number in range(0, 10_000, 321):
        (best, *_) = retriever.search(f"only{number} common5 common7 title", 5)
        assert (best.id, best.title) == (f"p{number}", f"Title {number}")
    tens = retriever.search("tens123", 20)
    assert [passage.id for passage in tens] == [f"p{i}" for i in range(1230, 1240)]
    assert len(retriever.search("hundreds99", 1000)) == 100
    assert known_page(retriever, "title 9999").text.startswith("only9999 tens999")
    assert retriever.search("nowhere", 5) == []


def test_pruning_leaves_nothing_out() -> None:
    """Against the sum over every list, where common words have long lists of small scores."""
    rng = np.random.default_rng(0)
    passages_, words_ = 20_000, 40
    chance = np.geomspace(0.001, 0.9, words_)
    columns = [np.flatnonzero(rng.random(passages_) < one).astype(np.int32) for one in chance]
    scores = [
        (rng.integers(1, 20, len(column)) / 20 / (1 + 20 * one)).astype(np.float32)
        for column, one in zip(columns, chance, strict=True)
    ]
    postings = Postings(
        np.cumsum([0, *map(len, columns)]),
        np.concatenate(columns),
        np.concatenate(scores),
        np.array([one.max() for one in scores]),
        passages_,
    )
    buffer = np.zeros(passages_, np.float32)
    for _ in range(200):
        weights = {int(word): int(rng.integers(1, 3)) for word in rng.choice(words_, 6, False)}
        dense = np.zeros(passages_)
        for word, weight in weights.items():
            dense[columns[word]] += weight * scores[word].astype(float)
        order = np.lexsort((np.arange(passages_), -dense.round(9)))[:5]
        found, values = postings.best(weights, 5, float("-inf"), buffer)
        assert values == pytest.approx(dense[order], rel=1e-9)
        assert set(np.flatnonzero(dense > values[-1] + 1e-9)) <= set(found.tolist())
        assert not buffer.any()


def test_equal_scores_keep_the_corpus_order_across_parts(tmp_path: Path) -> None:
    texts = ["red sky", "grey sky", "red red", "blue sky", "dark sea"] * 100
    retriever = indexed(write_corpus(tmp_path / "c.jsonl", passages(*texts)), part_words=200)
    expected = [*(f"T{5 * i + 2}" for i in range(100)), *(f"T{5 * i}" for i in range(100))]
    assert [p.title for p in retriever.search("red", 200)] == expected


def test_parts_open_with_the_package_bm25s(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", numbered(300))
    retriever = indexed(corpus, part_words=4000)
    index = default_index(corpus)
    keys, numbers = np.load(index / "word_keys.npy"), np.load(index / "word_ids.npy")
    word = int(numbers[np.searchsorted(keys, np.uint64(key_hash("common11")))])
    scores = np.concatenate(
        [
            bm25s.BM25.load(part, mmap=True, load_vocab=False).get_scores_from_ids([word])
            for part in sorted(index.glob("part-*"))
        ]
    )
    found = retriever.best("common11", 300)
    assert len(found) == np.count_nonzero(scores)
    assert all(score == scores[number] for number, score in found)


PAGES = [
    {"id": "0", "title": "TOLM", "text": "Shouted.", "url": "http://x/T"},
    {"id": "1", "title": "Tolm", "text": "One."},
    {"id": "2", "title": '"Q"', "text": "x"},
    {"id": "3", "title": "Tolm", "text": "Two."},
]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("Tolm", "One.\nTwo."),
        ("TOLM", "Shouted."),
        ("tolm", "Shouted.\nOne.\nTwo."),
        (" 'Tolm' ", "One.\nTwo."),
        ("HTTP://X/t", "Shouted."),
        ('"Q"', "x"),
        ("tol", None),
        ("", None),
        ('""', None),
    ],
)
def test_pages_open_as_those_of_rank_bm25_do(tmp_path: Path, key: str, text: str | None) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", PAGES)
    page = indexed(corpus).open_page(key)
    assert (page and page.text) == text
    assert page == RankBm25Retriever(read_corpus(corpus)).open_page(key)


def test_both_corpus_forms_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    rows = [{"id": "0", "contents": '"Give Peace"\nA song.'}, {"id": 1, "title": "B", "text": "x"}]
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(
        b"\xef\xbb\xbf" + b"".join(json.dumps(row).encode() + b"\r\n" for row in rows)
    )
    (found,) = indexed(corpus).search("peace", 5)
    assert (found.title, found.text, found.id) == ("Give Peace", "A song.", "0")


def test_passages_without_a_word(tmp_path: Path) -> None:
    rows = [{"id": "0", "contents": "?\n!"}, {"id": "1", "contents": "…\n–"}]
    assert indexed(write_corpus(tmp_path / "c.jsonl", rows)).search("tolm", 5) == []


def test_threads_share_an_index(tmp_path: Path) -> None:
    retriever = indexed(write_corpus(tmp_path / "c.jsonl", numbered(500)), part_words=5000)
    queries = [f"only{i} common{i % 97} title" for i in range(400)]
    alone = [retriever.search(query, 5) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: retriever.search(query, 5), queries)) == alone


# Building once


def test_an_index_that_fits_is_not_built_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(50)), tmp_path / "i"
    main([str(corpus), str(index)])
    assert capsys.readouterr().out == f"index: {index}\n"
    before = {path: path.stat().st_mtime_ns for path in index.rglob("*")}
    main([str(corpus), str(index)])
    assert "was there" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in index.rglob("*")} == before
    assert not list(index.glob("**/build-*"))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["i"]


def test_a_corpus_changed_since_is_an_error_that_says_what_to_run(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(50)), tmp_path / "i"
    build_index(corpus, index)
    text = corpus.read_text()
    corpus.write_text(text.replace("only7 ", "only8 "))  # as long as before
    with pytest.raises(IndexFileError, match="another text") as caught:
        Bm25sRetriever(corpus, index)
    assert f"run `python -m mempo.retrieval.build {corpus} {index}`" in str(caught.value)
    corpus.write_text(text + json.dumps({"id": "new", "contents": "New\nfresh words"}) + "\n")
    with pytest.raises(IndexFileError, match="another text"):
        Bm25sRetriever(corpus, index)
    assert build_index(corpus, index)
    assert [p.id for p in Bm25sRetriever(corpus, index).search("fresh", 5)] == ["new"]


def test_a_copied_corpus_with_the_same_text_fits(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(50)), tmp_path / "i"
    build_index(corpus, index)
    os.utime(corpus, (1, 1))
    assert Bm25sRetriever(corpus, index).search("only7", 1)[0].id == "p7"
    assert not build_index(corpus, index)


def test_an_index_that_is_missing_or_other_says_what_to_run(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(50)), tmp_path / "i"
    command = f"python -m mempo.retrieval.build {corpus} {index}"
    with pytest.raises(IndexFileError, match="there is no index") as caught:
        Bm25sRetriever(corpus, index)
    assert command in str(caught.value)
    build_index(corpus, index)
    with pytest.raises(IndexFileError, match=r"retriever\.title_weight=3: set it to 1") as caught:
        Bm25sRetriever(corpus, index, title_weight=3)
    assert f"{command} --title-weight 3" in str(caught.value)
    manifest = json.loads((index / MANIFEST).read_text())
    (index / MANIFEST).write_text(json.dumps(manifest | {"format": 0}))
    with pytest.raises(IndexFileError, match="another version"):
        Bm25sRetriever(corpus, index)
    assert build_index(corpus, index)
    (index / MANIFEST).write_text("{oops")
    with pytest.raises(IndexFileError, match="cannot be read"):
        Bm25sRetriever(corpus, index)
    corpus.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        build_index(corpus, tmp_path / "other")


@pytest.mark.parametrize("name", ["lines.npy", "part-00000/data.csc.index.npy", "word_ids.npy"])
@pytest.mark.parametrize("keep", [0, 100, 150, None])
def test_a_damaged_index_says_what_to_run(tmp_path: Path, name: str, keep: int | None) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(50)), tmp_path / "i"
    build_index(corpus, index)
    if keep is None:
        (index / name).unlink()
    else:
        (index / name).write_bytes((index / name).read_bytes()[:keep])
    with pytest.raises(IndexFileError, match=r"is damaged .*: remove it, and run `python -m"):
        Bm25sRetriever(corpus, index)


def test_a_folder_that_is_no_index_is_left_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", numbered(5))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexFileError, match="exists and is no index"):
        build_index(corpus, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_faulty_line_is_named_and_the_build_starts_over_with_the_repaired_corpus(
    tmp_path: Path,
) -> None:
    rows = numbered(60)
    corpus, index = tmp_path / "c.jsonl", tmp_path / "i"
    write_corpus(corpus, [*rows[:50], {"id": "p50"}, *rows[51:]])
    with pytest.raises(DataError, match=r"c\.jsonl:51: give the field"):
        build_index(corpus, index, part_words=500)
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]
    write_corpus(corpus, rows)
    build_index(corpus, index, part_words=500)
    build_index(corpus, tmp_path / "fresh", part_words=500)
    assert files_of(index) == files_of(tmp_path / "fresh")


def test_an_id_used_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    rows = numbered(60)
    rows[57]["id"] = "p3"
    corpus = write_corpus(tmp_path / "c.jsonl", rows)
    with pytest.raises(DataError, match=r'c\.jsonl:58: the id "p3" stands already on line 4'):
        build_index(corpus, tmp_path / "i", part_words=500)
    assert not (tmp_path / "i").exists()


def test_an_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(DataError, match="the file is empty"):
        build_index(tmp_path / "c.jsonl", tmp_path / "i")


def test_a_killed_build_goes_on_after_its_last_part(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(10_000)), tmp_path / "i"
    command = [sys.executable, "-m", "mempo.retrieval.build", str(corpus), str(index)]
    process = subprocess.Popen([*command, "--part-words", "5000"], cwd=ROOT)
    work = tmp_path / "i.building"
    end = time.monotonic() + 60
    while not (work / "part-00002").is_dir() and time.monotonic() < end:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not index.exists()
    kept = {path: path.stat().st_mtime_ns for path in work.glob("part-*/indices.csc.index.npy")}
    assert 3 <= len(kept) < 69  # 10,000 passages of 34 words in parts of 148 passages
    assert build_index(corpus, index, part_words=5000)
    for path, changed in kept.items():
        assert (index / path.relative_to(work)).stat().st_mtime_ns == changed
    build_index(corpus, tmp_path / "fresh", part_words=5000)
    assert files_of(index) == files_of(tmp_path / "fresh")


def test_a_build_stopped_while_it_scores_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", numbered(60)), tmp_path / "i"
    scored = part_files.write_scores

    def stopped(work: Any, parts: Any, size: Any, bar: Any) -> Never:
        scored(work, parts[:1], size, bar)
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_scores", stopped)
    with pytest.raises(SystemExit) as caught:
        main([str(corpus), str(index), "--part-words", "500"])
    assert caught.value.code == 130
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.undo()
    build_index(corpus, index, part_words=500)
    build_index(corpus, tmp_path / "fresh", part_words=500)
    assert files_of(index) == files_of(tmp_path / "fresh")


def test_two_builds_of_one_index_do_not_meet(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", numbered(5))
    (tmp_path / "i.building").mkdir()
    with (tmp_path / "i.building" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(IndexFileError, match="another build is writing"):
            build_index(corpus, tmp_path / "i")
    assert build_index(corpus, tmp_path / "i")
