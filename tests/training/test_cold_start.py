"""A supervised start from a file, on a small model without an engine (around the method)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mempo.command.cli import compose
from mempo.command.preflight import check_paths
from mempo.config import Config
from mempo.demonstrations.supervised_texts import (
    longest_text,
    read_trajectories,
    split_by_question,
    supervised_texts,
)
from mempo.demonstrations.trajectory_shapes import WrittenRound, WrittenTrajectory
from mempo.runtime.errors import ConfigError
from mempo.training.run import supervised_start
from tests.support.families import write_family

ROUNDS = (
    "<think>a</think><search>b</search>",
    "<mem>c</mem><think>d</think><answer>e</answer>",
)


def row(question: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": ROUNDS[0]},
            {"role": "tool", "content": "It was so."},
            {"role": "assistant", "content": ROUNDS[1]},
        ]
    }


def config(folder: Path, *overrides: str) -> Config:
    if not (folder / "model").exists():
        write_family("qwen2.5", folder / "model")
    rows = [row(f"Who is {name}?") for name in "ABCDEFGH"]
    lines = [json.dumps(one) for one in (*rows, *rows[:2])]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return compose(
        "train",
        [
            "model=pretrained", f"model.path={folder / 'model'}", "model.dtype=float32",
            "trainer=cpu", "sft=file", f"sft.path={folder / 'a.jsonl'}", "sft.steps=4",
            "sft.batch_size=4", "sft.warmup_steps=1", "sft.learning_rate=0.01",
            "model.prompt_template=compact", "rollout.max_observation_tokens=64",
            f"cache_dir={folder / 'cache'}", *overrides,
        ],
    )  # fmt: skip


def weights_of(folder: str | Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


def test_the_heldout_loss_is_told_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path, "sft.heldout_share=0.25")
    start = supervised_start(settings)
    lines = capsys.readouterr().out.splitlines()
    assert f"10 trajectories of 10 rows in {tmp_path / 'a.jsonl'}, " in lines[1]
    before, after = (line for line in lines if "held-out texts" in line)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    apart = supervised_texts(settings, start, tokenizer, None).heldout
    assert len(apart) >= 2
    expected = []
    for folder in (tmp_path / "model", start):
        model, total, count = AutoModelForCausalLM.from_pretrained(folder).eval(), 0.0, 0
        for text in apart:
            ids = torch.tensor([text.ids])
            with torch.no_grad():
                logprobs = model(ids).logits[0, :-1].log_softmax(-1)
            places = [index for index, one in enumerate(text.trained) if one]
            total -= sum(float(logprobs[place - 1, text.ids[place]]) for place in places)
            count += len(places)
        expected.append(total / count)
    assert before == (
        f"supervised start: loss {expected[0]:.3f} on {len(apart)} held-out texts before"
    )
    assert after == f"supervised start: loss {expected[1]:.3f} on {len(apart)} held-out texts after"
    assert expected[1] < expected[0] - 0.1
    assert supervised_start(settings) == start
    assert capsys.readouterr().out == f"supervised start: {start} (from the cache)\n"


def test_adapters_are_trained_alone_and_merged(tmp_path: Path) -> None:
    adapted = config(tmp_path, "lora=default", "model.lora.rank=2", "sft.train=adapters")
    whole = config(tmp_path, "lora=default", "model.lora.rank=2")
    base, merged = weights_of(tmp_path / "model"), weights_of(supervised_start(adapted))
    trained = weights_of(supervised_start(whole))
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert changed == {
        name for name in base if name.endswith(tuple(f"{one}.weight" for one in linear))
    }
    for name in changed:
        update = merged[name] - base[name]
        assert torch.linalg.matrix_rank(update, rtol=1e-4) <= 2
    assert {name for name in base if not torch.equal(base[name], trained[name])} > changed
    assert sorted(path.name[:3] for path in (tmp_path / "cache").iterdir()) == ["sft", "sft"]


def test_adapters_start_by_the_settings_alone(tmp_path: Path) -> None:
    """Not by what drew random numbers before, and nothing after them is drawn otherwise."""
    found, drawn = list[dict[str, torch.Tensor]](), list[bool]()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        settings = config(tmp_path / place, "lora=default", "sft.train=adapters", "sft.steps=1")
        torch.manual_seed(len(place + "x" * len(found)))
        expected = torch.rand(1, generator=torch.Generator().manual_seed(torch.initial_seed()))
        found.append(weights_of(supervised_start(settings)))
        drawn.append(float(torch.rand(1)) == float(expected))
    assert drawn == [True, True]
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=0, atol=0)


def test_the_limit_is_the_smallest(tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    assert longest_text(config(tmp_path, "sft.max_tokens=50"), folder) == 50
    assert longest_text(config(tmp_path, "engine.max_model_len=70"), folder) == 70
    own = json.loads((tmp_path / "model" / "config.json").read_text())["max_position_embeddings"]
    assert longest_text(config(tmp_path), folder) == own
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ConfigError, match="no trajectory has a round within 16 tokens: raise"):
        supervised_texts(config(tmp_path, "sft.max_tokens=16"), folder, tokenizer, None)


def test_attempts_at_one_question_stay_together() -> None:
    def attempt(question: str, number: int) -> WrittenTrajectory:
        return WrittenTrajectory(question, (WrittenRound("a", None),), None, f"f:{number}")

    every = [attempt(f"q{number % 10}", number) for number in range(40)]
    training, apart = split_by_question(every, 0.2, seed=0)
    assert len({one.question for one in apart}) == 2
    assert (len(training), len(apart)) == (32, 8)
    assert {one.question for one in training}.isdisjoint(one.question for one in apart)
    assert split_by_question(every, 0.0, seed=0) == (every, [])
    assert [len(part) for part in split_by_question(every[:2], 0.01, seed=0)] == [1, 1]
    assert [len(part) for part in split_by_question(every[:1], 0.5, seed=0)] == [1, 0]


def test_a_file_that_is_not_there_is_named_before_anything(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sft\.path=.*gone\.jsonl"):
        check_paths(config(tmp_path, f"sft.path=[{tmp_path / 'a.jsonl'},{tmp_path}/gone.jsonl]"))
    assert read_trajectories(compose("train", ["model=smollm2_135m"])) is None
