"""A policy is saved whatever its folder brought along (specification section 10)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from mempo.command.cli import compose
from mempo.models.loading import load_policy
from mempo.models.saving import save_policy, whole_weights
from tests.support.families import write_family


def saved_again(folder: Path, generation: dict[str, Any]) -> Path:
    """``folder`` with a ``generation_config``, opened as a run does and saved as a run does."""
    write_family("qwen2.5", folder / "model")
    (folder / "model" / "generation_config.json").write_text(json.dumps(generation))
    config = compose("train", ["model=pretrained", f"model.path={folder / 'model'}"])
    policy = load_policy(str(folder / "model"), config)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    save_policy(policy, whole_weights(policy, keep=True), folder / "saved", tokenizer)
    return folder / "saved"


def test_a_generation_config_that_contradicts_itself_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contradicting = {"do_sample": False, "temperature": 0.9, "eos_token_id": [3, 4]}
    with caplog.at_level(logging.WARNING):
        saved = saved_again(tmp_path, contradicting)
    assert "generation_config contradicts itself" in caplog.text
    assert "temperature" in caplog.text
    opened = GenerationConfig.from_pretrained(saved)
    assert opened.eos_token_id == [3, 4]
    assert opened.temperature in (None, 1.0)
    before, after = (
        dict(AutoModelForCausalLM.from_pretrained(path).named_parameters())
        for path in (tmp_path / "model", saved)
    )
    assert all(torch.equal(before[name], value) for name, value in after.items())


def test_one_that_does_not_is_kept(tmp_path: Path) -> None:
    saved = saved_again(tmp_path, {"do_sample": True, "temperature": 0.6, "top_k": 20})
    opened = GenerationConfig.from_pretrained(saved)
    assert (opened.do_sample, opened.temperature, opened.top_k) == (True, 0.6, 20)


def test_dropout_of_the_model_is_off_in_training(tmp_path: Path) -> None:
    """GPT-2's default is 0.1 at three places, the engine has none."""
    write_family("gpt2", tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.attn_pdrop == 0.1
    config = compose("train", ["model=pretrained", f"model.path={tmp_path}"])
    policy = load_policy(str(tmp_path), config).train()
    policy.gradient_checkpointing_disable()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(policy(input_ids=ids).logits, policy.eval()(input_ids=ids).logits)


@pytest.mark.parametrize(("setting", "expected"), [("auto", "eager"), ("eager", "eager")])
def test_a_cap_on_attention_is_not_left_out(tmp_path: Path, setting: str, expected: str) -> None:
    """PyTorch's scaled-dot-product attention would: Gemma 2's scores are capped."""
    write_family("gemma2", tmp_path)
    overrides = ["model=pretrained", f"model.path={tmp_path}", f"model.attention={setting}"]
    policy = load_policy(str(tmp_path), compose("train", overrides)).eval()
    assert policy.config._attn_implementation == expected
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        capped = policy(input_ids=ids).logits
        policy.set_attn_implementation("sdpa")
        assert float((policy(input_ids=ids).logits - capped).abs().max()) > 1e-3
