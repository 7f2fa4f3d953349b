"""Starts are found again by what they were made from (around the method)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from mempo.command.cli import compose
from mempo.config import Config
from mempo.demonstrations import start
from mempo.demonstrations.start import start_folder, supervised_key
from mempo.models import content
from mempo.models.content import model_content
from mempo.runtime import cache


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model folder, as far as a key looks at it."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "README.md").write_text("a model", encoding="utf-8")
    return folder


def config(tmp_path: Path, *overrides: str) -> Config:
    return compose("train", [f"cache_dir={tmp_path}/cache", *overrides])


def test_recomputation_and_adapters_keep_the_supervised_start(tmp_path: Path, base: Path) -> None:
    plain = config(tmp_path)
    for overrides in (
        ["model.gradient_checkpointing=selective"],
        ["model.attention=eager"],
        ["lora=default"],
    ):
        changed = config(tmp_path, *overrides)
        assert changed.model != plain.model
        assert supervised_key(changed, str(base)) == supervised_key(plain, str(base))
    wider = dataclasses.replace(plain, model=dataclasses.replace(plain.model, dtype="bfloat16"))
    assert supervised_key(wider, str(base)) != supervised_key(plain, str(base))


def test_adapters_that_the_supervised_start_trains_are_part_of_it(
    tmp_path: Path, base: Path
) -> None:
    plain = supervised_key(config(tmp_path), str(base))
    adapted = ["lora=default", "sft.train=adapters"]
    first = supervised_key(config(tmp_path, *adapted), str(base))
    assert first != plain
    assert supervised_key(config(tmp_path, *adapted, "model.lora.rank=4"), str(base)) != first


def test_a_start_from_files_is_known_by_their_content(tmp_path: Path, base: Path) -> None:
    file, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_text("one", encoding="utf-8")
    other.write_text("one", encoding="utf-8")

    def key(*overrides: str, path: Path = file) -> dict[str, Any]:
        return supervised_key(
            config(tmp_path, "sft=file", f"sft.path={path}", *overrides), str(base)
        )

    first = key()
    assert key(path=other) == first
    for same in ("sft.drop_probability=0.1", "data.world.passages=99", "sft.context=full"):
        assert key(same) == first
    for different in (
        "sft.min_reward=0.5",
        "sft.max_tokens=500",
        "sft.context=both",
        "rollout.context=memory",
        "rollout.max_observation_tokens=99",
        "model.system_prompt=null",
        "sft.learning_rate=0.1",
    ):
        assert key(different) != first
    file.write_text("two", encoding="utf-8")
    assert key() != first


def test_another_model_under_the_same_name_gives_another_start(tmp_path: Path, base: Path) -> None:
    """Names, places and times do not count; every file that says what the model is does."""

    def key() -> dict[str, Any]:
        return supervised_key(config(tmp_path), str(base))

    first = key()
    moved = tmp_path / "moved"
    base.rename(moved)
    assert supervised_key(config(tmp_path), str(moved)) == first
    moved.rename(base)
    (base / "README.md").write_text("another text", encoding="utf-8")
    os.utime(base / "config.json", (1, 1))
    assert key() == first
    times = (base / "model.safetensors").stat()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        before, text = key(), (base / name).read_bytes()
        (base / name).write_bytes(text[:-1] + b"X")  # of the same length, at the same time
        os.utime(base / name, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert key() != before
    (base / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert key() != before


def test_an_edited_template_gives_another_start(tmp_path: Path, base: Path) -> None:
    prompt, chat = tmp_path / "mine.txt", tmp_path / "chat.jinja"
    overrides = [f"model.prompt_template={prompt}", f"model.chat_template={chat}"]
    chat.write_text("{{ messages }}", encoding="utf-8")
    prompt.write_text("Answer: {{ question }}", encoding="utf-8")
    first = supervised_key(config(tmp_path, *overrides), str(base))
    renamed = prompt.rename(tmp_path / "same.txt")
    again = config(tmp_path, f"model.prompt_template={renamed}", overrides[1])
    assert supervised_key(again, str(base)) == first
    prompt.write_text("Reply: {{ question }}", encoding="utf-8")
    second = supervised_key(config(tmp_path, *overrides), str(base))
    assert second != first
    chat.write_text("{{ messages | list }}", encoding="utf-8")
    assert supervised_key(config(tmp_path, *overrides), str(base)) != second


def test_the_cache_may_be_spelled_otherwise(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spelled = [f"{tmp_path}/cache", "cache", "./cache", f"{tmp_path}/base/../cache"]
    keys = [supervised_key(compose("train", [f"cache_dir={one}"]), str(base)) for one in spelled]
    assert keys == keys[:1] * 4


def test_the_tiny_start_depends_on_its_demonstrations_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_TOKENIZER_DEMONSTRATIONS", 40)
    debug = ("experiment=debug", "data.world.passages=40")
    edited = tmp_path / "mine.txt"
    edited.write_text("Answer with a <mem>: {{ question }}", encoding="utf-8")
    first = start_folder(config(tmp_path, *debug))
    assert start_folder(config(tmp_path, *debug, "sft.steps=7", "trainer=ddp")) == first
    for other in (
        f"model.prompt_template={edited}",
        "retriever.page_chars=900",
        "scoring.filler=Now.",
        "sft.worlds=3",
    ):
        assert start_folder(config(tmp_path, *debug, other)) != first


def test_the_digest_of_a_large_file_is_kept(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashed once, and again when it was replaced, whatever its time and length say."""
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return original(path)

    original = cache.file_digest
    monkeypatch.setattr(content, "file_digest", counted)
    kept, weights = tmp_path / "digests", base / "model.safetensors"
    (base / "config.json").unlink()
    (base / "tokenizer.json").unlink()
    first = model_content(str(base), kept, large=5)
    # printf weights | sha256sum
    digest = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
    assert first == {"model.safetensors": digest}
    assert model_content(str(base), kept, large=5) == first
    assert hashed == ["model.safetensors"]
    time = weights.stat().st_mtime_ns
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(time, time))
    assert model_content(str(base), kept, large=5) != first
    (memo,) = kept.iterdir()
    memo.write_text('{"identity": ', encoding="utf-8")  # as a full disk leaves it
    assert model_content(str(base), kept, large=5) != first
    assert hashed == ["model.safetensors"] * 3
