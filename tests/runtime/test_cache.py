"""Folders that runs share (around the method)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mempo.runtime.cache import cached_folder, cached_path


@dataclass(frozen=True)
class Setting:
    size: int


def write(text: str, made: list[str] | None = None) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "file").write_text(text, encoding="utf-8")
        if made is not None:
            made.append(text)

    return make


def test_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    key = {"size": Setting(3)}
    first = cached_folder(str(tmp_path / "cache"), "thing", key, write("one", made))
    again = cached_folder(str(tmp_path / "cache"), "thing", key, write("two", made))
    assert first == again == cached_path(str(tmp_path / "cache"), "thing", key)
    assert (first / "file").read_text(encoding="utf-8") == "one"
    assert made == ["one"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]
    assert first.stat().st_mode & 0o777 == 0o755


def test_the_path_depends_on_name_and_key() -> None:
    paths = {
        cached_path("c", name, {"size": Setting(size), "seed": seed})
        for name in ("a", "b")
        for size in (1, 2)
        for seed in (0, 1)
    }
    assert len(paths) == 8
    assert cached_path("c", "a", {"x": 1, "y": 2}) == cached_path("c", "a", {"y": 2, "x": 1})


def test_a_key_of_no_plain_value_is_an_error() -> None:
    with pytest.raises(TypeError, match="object cannot be part of a cache key"):
        cached_path("c", "a", {"x": object()})


def test_a_make_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half", encoding="utf-8")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cached_folder(str(tmp_path), "thing", {}, fail)
    assert list(tmp_path.iterdir()) == []
    folder = cached_folder(str(tmp_path), "thing", {}, write("whole"))
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_of_two_makers_one_wins_and_both_find_the_same(tmp_path: Path) -> None:
    both_make = threading.Barrier(2, timeout=20)
    found: list[Path] = []

    def run(text: str) -> None:
        def make(folder: Path) -> None:
            both_make.wait()
            write(text)(folder)

        found.append(cached_folder(str(tmp_path), "thing", {}, make))

    threads = [threading.Thread(target=run, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(found) == 2
    assert found[0] == found[1]
    assert list(tmp_path.iterdir()) == [found[0]]
    assert (found[0] / "file").read_text(encoding="utf-8") in ("one", "two")


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    cached_path(str(tmp_path), "thing", {}).write_text("a file", encoding="utf-8")
    with pytest.raises(OSError, match="thing"):
        cached_folder(str(tmp_path), "thing", {}, write("one"))
    assert len(list(tmp_path.iterdir())) == 1
