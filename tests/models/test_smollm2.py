"""The real small model that comes with a package (specification section 10)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mempo.agent.conversation import Conversation
from mempo.agent.state_machine import Agent, AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import EngineConfig, RetrieverConfig, ScoringConfig
from mempo.engine.vllm_engine import Engine
from mempo.learning.scoring import MemoryScorer
from mempo.models.smollm2 import load_packaged_smollm2
from mempo.trajectory import Objective, Task, Trajectory
from tests.support.engine_truth import assert_engine_agrees
from tests.support.fakes import FakeRetriever

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


@pytest.mark.parametrize("context", ["full", "memory"])
def test_p_mem_ends_at_the_closing_tag(packaged: tuple[Any, Any], context: Any) -> None:
    """The tokenizer merges ``><``; the memory context is a plain row up to ``</mem>``, and both
    methods give its number. With the next tag's ``<`` at its end the number is another one."""
    model, tokenizer = packaged
    assert tokenizer.encode("</mem><think>")[2] == tokenizer.encode("><")[0]
    conversation = Conversation(tokenizer, "You are a helpful assistant.")
    task = Task("t", (Objective("What is the capital of France?", ("Paris",)),))
    prompt = conversation.prompt_ids(task.question)
    trajectory = Trajectory(task, 0, 0, len(prompt))
    pages = {"France": "France is a country. Its capital is Paris."}
    session = ToolBox({"default": FakeRetriever(pages)}, RetrieverConfig()).session(task)
    limits = AgentSettings(context, 4, 2000, 400, 200)
    agent = Agent(trajectory, prompt, conversation, session, limits, 4000)
    memory = "<mem>The capital of France is Paris</mem>"
    for text in (
        "<think>I search.</think><search>France</search>",
        f"{memory}<think>I look again.</think><search>France</search>",
        "<mem>France</mem><think>Done.</think><answer>Paris</answer>",
    ):
        ids = conversation.encode(text)
        assert agent.next_request() is not None
        agent.receive(ids, [-1.0] * len(ids), "stop")
        if agent.pending_call is not None:
            agent.observe(session.call(*agent.pending_call))
    second = trajectory.rounds[1]
    row = [*prompt, *conversation.encode(memory)]
    assert row[-1] == tokenizer.encode(">")[0]
    right = plain_p(model, tokenizer, row)
    off = plain_p(model, tokenizer, [*row[:-1], tokenizer.encode("><")[0]])
    assert abs(right - off) > 1e-3
    for method in ("tree", "padded"):
        MemoryScorer(tokenizer, ScoringConfig(method=method)).score(model, [trajectory])
        assert second.p_mem is not None
        assert math.log(second.p_mem) == pytest.approx(math.log(right), abs=1e-4)
    print(f"P_mem {off:.4f} inside the next tag, {right:.4f} at </mem>")


@torch.no_grad()
def plain_p(model: Any, tokenizer: Any, context: list[int]) -> float:
    """P of the gold ``Paris`` after a context, from one forward."""
    before, after = "\n<think>I can answer now.</think>\n<answer>\n", "\n</answer>"
    text = tokenizer.encode(before + "Paris" + after)
    (place,) = (i for i, token in enumerate(text) if tokenizer.decode([token]) == "Paris")
    logits = model(input_ids=torch.tensor([context + text])).logits[0].double()
    place += len(context)
    return float(logits[place - 1].softmax(-1)[text[place - len(context)]])


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
