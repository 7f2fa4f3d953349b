"""The real small model that comes with a package (specification section 10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mempo.agent.conversation import Conversation
from mempo.config import EngineConfig
from mempo.engine.vllm_engine import Engine
from mempo.models.smollm2 import load_packaged_smollm2
from tests.support.engine_truth import assert_engine_agrees

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packaged() -> tuple[Any, Any]:
    return load_packaged_smollm2()


def test_the_packaged_model_loads_and_speaks_its_own_template(packaged: tuple[Any, Any]) -> None:
    model, tokenizer = packaged
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    conversation = Conversation(tokenizer, "You are a helpful assistant.")
    ids = conversation.prompt_ids("What is the capital of France?")
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    assert "Paris" in conversation.decode(out[0, len(ids) :].tolist())


def test_nemo_rl_3497_skyrl_2246_engine_equals_trainer_before_and_after_a_sync(
    packaged: tuple[Any, Any], tmp_path: Path
) -> None:
    """Float32, temperature 1 and 0.7, cached prefixes, a generation_config that asks for more."""
    model, tokenizer = packaged
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"repetition_penalty": 1.1, "temperature": 0.2, "top_k": 3})
    )
    engine = Engine(str(tmp_path), EngineConfig(max_num_seqs=4, max_model_len=256))
    try:
        assert_engine_agrees(engine, model, 1.0)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise * parameter.std() * 0.02)
        engine.sync((name, value.detach()) for name, value in model.named_parameters())
        for temperature in (1.0, 0.7):
            assert_engine_agrees(engine, model, temperature)
    finally:
        engine.close()
