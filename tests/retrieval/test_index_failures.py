"""Builds that fail, are killed or run out of room: the index that was there stays whole
(specification section 11)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mempo.retrieval import Bm25sRetriever, IndexFileError, index_swap
from mempo.retrieval.build import build_index, main
from mempo.retrieval.index_files import MANIFEST
from mempo.row_files.rows import DataError

ROOT = Path(__file__).resolve().parents[2]
PART_WORDS = 170  # of 300, titles counted 3 times: two parts


def write_corpus(path: Path, count: int = 30) -> Path:
    rows = [{"id": str(i), "contents": f"Title {i}\nonly{i} and some words"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def killed_at(step: int, way: str, corpus: Path, index: Path) -> bool:
    """Builds with titles counted 3 times in a process that SIGKILL ends before its ``step``-th
    rename, exchange or removal; ``False`` when it has no so many."""
    child = os.fork()
    if child == 0:
        left = step
        exchange = index_swap._exchange

        def count(event: str, arguments: object) -> None:
            nonlocal left
            if event in ("os.rename", "os.remove", "shutil.rmtree", "test.exchange"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        def told(one: Path, other: Path) -> bool:
            sys.audit("test.exchange")
            return way == "exchange" and exchange(one, other)

        try:
            index_swap._exchange = told
            sys.addaudithook(count)
            build_index(corpus, index, title_weight=3, part_words=PART_WORDS)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def finds(corpus: Path, index: Path, title_weight: int) -> bool:
    retriever = Bm25sRetriever(corpus, index, title_weight)
    return [passage.id for passage in retriever.search("only7", 5)] == ["7"]


@pytest.mark.parametrize("way", ["exchange", "rename"])
def test_killed_at_every_step_the_older_index_or_the_new_one_is_there(
    tmp_path: Path, way: str
) -> None:
    """SIGKILL before every rename and removal; "rename" is for systems that cannot exchange folders
    in one step: there the index may be away until the next build, which puts it back."""
    corpus, index = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    outcomes = []
    for step in range(100):
        build_index(corpus, index)
        if not killed_at(step, way, corpus, index):
            break
        if way == "exchange" or index.exists():
            weight = json.loads((index / MANIFEST).read_text())["title_weight"]
            assert finds(corpus, index, weight)
            outcomes.append(weight)
        else:
            outcomes.append(0)
        build_index(corpus, index, title_weight=3, part_words=PART_WORDS)
        assert finds(corpus, index, 3)
        assert names(tmp_path) == {"c.jsonl", "i"}
        assert not list(index.glob("part-*/build-*"))
    assert step >= 5  # parts, the exchange, and what is removed after it
    assert finds(corpus, index, 3)
    assert set(outcomes) == ({1, 3} if way == "exchange" else {0, 1, 3})
    assert outcomes == sorted(outcomes, key=[1, 0, 3].index)  # the old one, then the new one


@pytest.mark.parametrize("room", [0, 150, 500, 900])
def test_without_room_a_build_ends_with_a_sentence_and_leaves_nothing(
    tmp_path: Path, room: int
) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", 100), tmp_path / "deep" / "i"
    program = (
        "import resource, sys; from mempo.retrieval.build import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, resource.RLIM_INFINITY));"
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, str(corpus), str(index)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"error: {index} cannot be written (" in done.stderr
    assert "Traceback" not in done.stderr
    assert names(tmp_path) == {"c.jsonl"}

    build_index(corpus, index)
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    command += ["--title-weight", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert {path: path.read_bytes() for path in index.rglob("*") if path.is_file()} == before
    assert names(tmp_path / "deep") == {"i"}
    assert finds(corpus, index, 1)


def test_a_faulty_corpus_leaves_the_older_index_and_nothing_else(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    build_index(corpus, index)
    good = corpus.read_bytes()
    corpus.write_bytes(good + b"{oops\n")
    with pytest.raises(DataError, match=r"c\.jsonl:31: the line is not JSON"):
        build_index(corpus, index, part_words=60)
    with pytest.raises(DataError, match=r"c\.jsonl:31: the line is not JSON"):
        build_index(corpus, tmp_path / "new" / "folder" / "j", part_words=60)
    assert names(tmp_path) == {"c.jsonl", "i"}
    corpus.write_bytes(good)
    assert finds(corpus, index, 1)


def test_parts_that_a_crash_damaged_are_read_again(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    assert killed_at(2, "exchange", corpus, index)
    (state, *_) = sorted((tmp_path / "i.building").glob("part-*/build-state.json"))
    state.write_text('{"piece"')
    assert build_index(corpus, index, title_weight=3, part_words=PART_WORDS)
    assert finds(corpus, index, 3)


def test_blank_lines_at_the_end_are_none_and_elsewhere_named(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", 8), tmp_path / "i"
    lines = corpus.read_text()
    corpus.write_text(lines + "\n  \n")
    build_index(corpus, index)
    retriever = Bm25sRetriever(corpus, index)
    assert retriever.passages == 8
    assert [(p.id, p.text) for p in retriever.search("only7", 5)] == [("7", "only7 and some words")]
    corpus.write_text("\n" + lines)
    with pytest.raises(DataError, match=r"c\.jsonl:1: the line is blank"):
        build_index(corpus, index)


# Wrong values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["{corpus}", "{new}", "--title-weight", "0"], "--title-weight must be from 1 to 1000"),
        (["{corpus}", "{new}", "--title-weight", "-3"], "--title-weight must be from 1 to 1000"),
        (["{corpus}", "{new}", "--title-weight", "1001"], "--title-weight must be from 1 to 1000"),
        (["{corpus}", "{new}", "--title-weight", "9" * 5000], "--title-weight: invalid int"),
        (["{corpus}", "{new}", "--title-weight", "many"], "--title-weight: invalid int"),
        (["{corpus}", "{new}", "--title-weight", ""], "--title-weight: invalid int"),
        (["{corpus}", "{new}", "--part-words", "0"], "--part-words must be"),
        (["{corpus}", "{new}", "--part-words", "1.5"], "--part-words: invalid int"),
        (["", "{new}"], "corpus is empty"),
        (["{corpus}", ""], "output is empty"),
        (["{corpus}", "/"], "/ exists and is no index"),
        (["{corpus}", "{corpus}"], "c.jsonl exists and is no index"),
        (["{corpus}", "{corpus}/i"], "c.jsonl/i cannot be written (Not a directory)"),
        (["{corpus}", "{folder}/" + "n" * 250], "cannot be written (File name too long)"),
        (["{corpus}", "/proc/i"], "/proc/i cannot be written"),
        (["{folder}/none", "{new}"], "none: cannot be read (No such file or directory)"),
        (["{folder}", "{new}"], "it is no file"),
        (["/dev/zero", "{new}"], "/dev/zero: it is no file"),
        (["{corpus}/none", "{new}"], "cannot be read (Not a directory)"),
        (["n" * 5000, "{new}"], "cannot be read (File name too long)"),
    ],
)
def test_every_wrong_value_of_a_build_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: list[str], words: str
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    places = {"corpus": corpus, "folder": tmp_path, "new": tmp_path / "a" / "i"}
    with pytest.raises(SystemExit) as caught:
        main([value.format(**places) for value in values])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert "error:" in said
    assert names(tmp_path) == {"c.jsonl"}


def test_a_huge_part_is_the_whole_corpus(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    main([str(corpus), str(index), "--part-words", str(10**30)])
    assert finds(corpus, index, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": []},
        {"parts": ["many"]},
        {"parts": [1e308]},
        {"parts": [-30]},
        {"parts": None},
        {"pieces": [1]},
        {"pieces": [{"start": 0, "end": "far", "digest": ""}]},
        {"title_weight": None},
        {"surprise": 1},
    ],
)
def test_a_manifest_changed_by_hand_says_what_to_run(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl"), tmp_path / "i"
    build_index(corpus, index)
    manifest = json.loads((index / MANIFEST).read_text())
    for text in (json.dumps(manifest | change), "[" * 100_000, "9" * 5000, "[]", "null", ""):
        (index / MANIFEST).write_text(text)
        with pytest.raises(IndexFileError, match=r"cannot be read .*: run `python -m"):
            Bm25sRetriever(corpus, index)
    assert build_index(corpus, index)
    assert finds(corpus, index, 1)


@pytest.mark.parametrize("index", ["", "{corpus}", "{folder}", "{folder}/none", "n" * 5000, "a\0b"])
def test_a_path_that_is_no_index_says_what_to_run(tmp_path: Path, index: str) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    with pytest.raises(IndexFileError, match=r"run `python -m mempo\.retrieval\.build"):
        Bm25sRetriever(corpus, index.format(corpus=corpus, folder=tmp_path))


def test_paths_with_spaces_are_quoted_in_the_command_to_run(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "my corpus.jsonl")
    with pytest.raises(IndexFileError) as caught:
        Bm25sRetriever(corpus, tmp_path / "it's")
    command = str(caught.value).split("`")[1]
    done = subprocess.run(
        command.replace("python", sys.executable, 1), shell=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0
    assert finds(corpus, tmp_path / "it's", 1)
