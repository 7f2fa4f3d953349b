"""Supervised starts of agents without a memory (around section 9): ``rollout.context=react``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mempo.agent.protocol import Protocol, trajectory_broken_rules
from mempo.command.cli import compose
from mempo.config import RetrieverConfig, SftConfig, WorldConfig
from mempo.demonstrations.shipped import shipped_start
from mempo.demonstrations.start import demonstrations_key
from mempo.demonstrations.supervised_texts import read_trajectories, supervised_texts
from mempo.demonstrations.world import generate_demonstrations
from mempo.row_files.rows import DataError
from tests.support.contexts import rendered_ids
from tests.support.small_tokenizers import SYSTEM, make_tokenizer

REACT = ["rollout.context=react", "algorithm=grpo"]
ROUNDS = ["<think>so</think><search>Ann</search>", "<think>done</think><answer>Rome</answer>"]
FOUND = "<information>1. Ann: Rome.</information>"


def test_demonstrations_are_whole_attempts_without_memories() -> None:
    made = list(
        generate_demonstrations(
            SftConfig(worlds=4, objectives=(1, 3)),
            WorldConfig(passages=200),
            RetrieverConfig(),
            2,
            60,
            0,
            memory=False,
        )
    )
    assert {one.kind for one in made} == {"trajectory"}
    for one in made:
        written = [turn.text for turn in one.turns if turn.role == "assistant"]
        assert all(turn.trained for turn in one.turns if turn.role == "assistant")
        assert trajectory_broken_rules(written, Protocol(memory=False)) == []
        assert not any("mem>" in text for text in written)
    assert {one.question.count(";") for one in made} == {0, 1, 2}


def test_the_start_is_another_one() -> None:
    default, react = compose("train", []), compose("train", REACT)
    assert shipped_start(default) is not None
    assert shipped_start(react) is None
    own = demonstrations_key(react)
    assert own["memory"] is False
    assert own["prompt"] == "Use <think><search><access><answer>. {{ question }}"
    assert "memory" not in demonstrations_key(default)


def write(path: Path, rounds: list[str]) -> Path:
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": rounds[0]},
        {"role": "user", "content": FOUND},
        {"role": "assistant", "content": rounds[1]},
    ]
    path.write_text(json.dumps({"messages": messages}) + "\n")
    return path


def test_a_file_of_rounds_without_memories(tmp_path: Path) -> None:
    """They are faults for a memory agent, and a react agent's texts as its rollout has them."""
    path = write(tmp_path / "react.jsonl", ROUNDS)
    given = ["model=pretrained", f"model.path={tmp_path}", "sft=file", f"sft.path={path}"]
    with pytest.raises(DataError, match="round 2 breaks rule 8"):
        read_trajectories(compose("train", given))
    config = compose(
        "train",
        [*given, *REACT, "model.prompt_template=compact", f"model.system_prompt='{SYSTEM}'"],
    )
    tokenizer = make_tokenizer("tags")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (text,) = supervised_texts(config, str(tmp_path), tokenizer, None).training
    opening = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Use <think><search><access><answer>. Where?"},
    ]
    turns = [
        {"role": "assistant", "content": ROUNDS[0]},
        {"role": "user", "content": FOUND},
    ]
    before = rendered_ids([*opening, *turns], "tags", "qwen2.5")
    assert text.ids[: len(before)] == before
    rest = str(tokenizer.decode(text.ids[len(before) :]))
    assert rest.startswith(ROUNDS[1])
    write(path, [ROUNDS[0], "<mem>Ann: Rome</mem>" + ROUNDS[1]])
    with pytest.raises(DataError, match="round 2 breaks rule 5"):
        read_trajectories(config)
