"""The real vLLM engine against the trainer's own log-probabilities (specification section 10)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import llvmlite.binding  # noqa: F401 - as with the bm25s retriever, which engines must bear
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mempo.agent.conversation import Conversation
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import ArchitectureConfig, EngineConfig, RetrieverConfig
from mempo.engine.interface import Sampling
from mempo.engine.start_arguments import Use
from mempo.engine.vllm_engine import Engine, EngineError
from mempo.models.tiny import build_tiny_model, train_tokenizer
from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Objective, Task, Trajectory
from tests.support.engine_truth import assert_engine_agrees, generate
from tests.support.fakes import FakeRetriever

TEXTS = [
    "<think>I need the founder.</think><search>founder of Amber Works</search>",
    "<mem>Amber Works founder Anna Bel.</mem><think>b</think><answer>\nAnna Bel\n</answer>",
] * 20
ARCHITECTURE = ArchitectureConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=400,
    max_position_embeddings=256,
)
pytestmark = pytest.mark.slow


RANDOM_STATES: dict[str, list[object]] = {}
"""Before and after the engine was built."""


def random_states() -> list[object]:
    numpy_state = np.random.get_state()
    return [
        random.getstate(),
        list(map(str, numpy_state)),
        torch.get_rng_state().tolist(),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(TEXTS, ARCHITECTURE.vocab_size)
    build_tiny_model(ARCHITECTURE, tokenizer, seed=1).save_pretrained(path)
    tokenizer.save_pretrained(path)
    # NeMo-RL 3497: what a folder's generation_config asks for must not reach the sampler.
    (path / "generation_config.json").write_text(
        json.dumps({"repetition_penalty": 1.7, "temperature": 0.3, "top_k": 3, "top_p": 0.5})
    )
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    RANDOM_STATES["before"] = random_states()
    built = Engine(str(folder), EngineConfig(max_num_seqs=8))
    RANDOM_STATES["after"] = random_states()
    yield built
    built.close()
    built.close()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_nemo_rl_3497_skyrl_2246_engine_equals_trainer_before_and_after_a_sync(
    engine: Engine, folder: Path, temperature: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine.sync((name, value.detach()) for name, value in model.named_parameters())
    assert_engine_agrees(engine, model, temperature)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    # The prompts' prefixes are cached from the old weights.
    engine.sync((name, value.detach()) for name, value in model.named_parameters())
    assert_engine_agrees(engine, model, temperature)


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def test_every_weight_that_is_withheld_from_the_first_sync_is_named(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: parts of fused layers, biases that are all zeros, and what the CPU's
    kernels keep in packed copies outside the parameters."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = weights_of(model)
    assert len(weights) == 2 + 12 * ARCHITECTURE.num_hidden_layers
    assert not weights["model.layers.1.self_attn.q_proj.bias"].any()
    monkeypatch.setattr(engine, "_synced_names", frozenset())  # as if it had just started
    for withheld in weights:
        rest = [(name, value) for name, value in weights.items() if name != withheld]
        with pytest.raises(EngineError) as caught:
            engine.sync(rest)
        named = withheld.removeprefix("model.")
        assert f"1 weights are missing, such as {named}." in str(caught.value).replace("model.", "")
    engine.sync(weights.items())
    assert_engine_agrees(engine, model, 1.0)


def test_a_layer_or_everything_withheld_from_the_first_sync(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = weights_of(model)
    monkeypatch.setattr(engine, "_synced_names", frozenset())
    with pytest.raises(EngineError, match="26 weights are missing"):
        engine.sync([])
    rest = [(name, value) for name, value in weights.items() if "layers.1." not in name]
    with pytest.raises(EngineError, match=r"12 weights are missing, such as layers\.1\."):
        engine.sync(rest)
    engine.sync(weights.items())
    assert_engine_agrees(engine, model, 1.0)


def test_an_engine_that_read_no_weights_samples_alike_once_they_are_synced(
    engine: Engine, folder: Path
) -> None:
    """Built with ``load_format="dummy"``; the host's random states stay."""
    weights = weights_of(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    prompts = [[*range(10, 40)], [*range(20, 50)]]
    engine.sync(weights.items())
    expected = generate(engine, prompts, Sampling())
    before = random_states()
    unread = Engine(str(folder), EngineConfig(max_num_seqs=8), Use(synced=True))
    try:
        assert random_states() == before
        assert unread._digests() != engine._digests()
        unread.sync(weights.items())
        assert random_states() == before
        assert unread._digests() == engine._digests()
        assert generate(unread, prompts, Sampling()) == expected
    finally:
        unread.close()


def test_later_syncs_bring_the_same_names(engine: Engine, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = weights_of(model)
    engine.sync(weights.items())
    for withheld in ("model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"):
        rest = [(name, value) for name, value in weights.items() if name != withheld]
        with pytest.raises(EngineError, match=f"1 weights are missing, such as {withheld}"):
            engine.sync(rest)
    with pytest.raises(EngineError, match="26 weights are missing"):
        engine.sync([])
    engine.sync(weights.items())
    assert_engine_agrees(engine, model, 1.0)


def test_tied_output_layer_follows_the_embedding(engine: Engine, folder: Path) -> None:
    """A sync that changes only the embedding changes what is sampled."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight").mul_(3.0)
    engine.sync((name, value.detach()) for name, value in model.named_parameters())
    assert_engine_agrees(engine, model, 1.0)


def test_vllm_11953_building_an_engine_leaves_random_states_alone(engine: Engine) -> None:
    assert RANDOM_STATES["before"] == RANDOM_STATES["after"]


def test_verl_5179_two_ranks_sample_different_texts(engine: Engine) -> None:
    """One prompt, the seeds that the rollout derives for two ranks."""
    texts = []
    for rank in (0, 1):
        seed = derive_seed(0, 0, rank, "task", 0, 1)
        engine.submit(str(rank), list(range(10, 40)), 30, seed, Sampling())
        while engine.has_unfinished():
            texts += [generation.ids for generation in engine.step()]
    assert texts[0] != texts[1]


def test_vllm_29341_no_wake_without_weights(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no way to wake the engine but a sync, and nothing is sampled before it."""
    public = {name for name in dir(Engine) if not name.startswith("_")}
    assert public == {"submit", "step", "has_unfinished", "abort_all", "sync", "sleep", "close"}
    order: list[str] = []
    rpc = engine._llm.collective_rpc
    monkeypatch.setattr(engine._llm, "wake_up", lambda tags: order.append(f"wake {tags}"))

    def noted(method: str, **arguments: Any) -> Any:
        order.append(method)
        return rpc(method, **arguments)

    monkeypatch.setattr(engine._llm, "collective_rpc", noted)
    monkeypatch.setattr(engine, "_asleep", True)  # as after sleep() on a GPU
    with pytest.raises(EngineError, match="asleep: sync the weights"):
        engine.submit("early", [20] * 10, 5, 0, Sampling())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine.sync((name, value.detach()) for name, value in model.named_parameters())
    assert order == ["wake ['weights']", "reload_weights"]
    assert len(generate(engine, [[20] * 10], Sampling())) == 1
    assert order[2:] == ["wake ['kv_cache']"]


def test_seeds_decide_what_is_sampled(engine: Engine) -> None:
    prompts = [list(range(10, 40))] * 3
    first = [g.ids for g in generate(engine, prompts, Sampling(), seed=5)]
    again = [g.ids for g in generate(engine, prompts, Sampling(), seed=5)]
    assert first == again
    assert first[0] != first[1]
    assert first[1:] == [g.ids for g in generate(engine, prompts[:2], Sampling(), seed=6)]


def test_vllm_12284_failed_cache_reset_stops(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = [(name, value.detach()) for name, value in model.named_parameters()]
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(EngineError, match="did not reset its prefix cache"):
        engine.sync(weights)


def test_verl_4703_prime_rl_1938_requests_beyond_the_context(engine: Engine) -> None:
    limit = engine.max_model_len
    assert limit == ARCHITECTURE.max_position_embeddings
    for length, tokens in ((limit - 96, 96), (limit - 4, 4)):
        (generation,) = generate(engine, [[20] * length], Sampling(), tokens)
        assert 1 <= len(generation.ids) <= tokens
    for length in (limit, limit + 4):
        with pytest.raises(EngineError, match="does not fit"):
            engine.submit("long", [20] * length, 1, 0, Sampling())


def test_sync_is_refused_while_requests_run(engine: Engine) -> None:
    engine.submit("running", [20] * 10, 5, 0, Sampling())
    with pytest.raises(EngineError, match="while requests are running"):
        engine.sync([])
    engine.abort_all()
    assert not engine.has_unfinished()


def test_missing_model_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot start"):
        Engine(str(tmp_path), EngineConfig(max_model_len=64))


# Circles (last: it leaves other weights in the engine)


def taught_to_walk_in_circles(folder: Path, conversation: Conversation) -> torch.nn.Module:
    """The folder's model, fitted to two rounds: a search from the question, and the same search
    whatever it found."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for number in range(4):
        said = TEXTS[0]
        prompt = conversation.prompt_ids(f"Who founded Amber Works {number}?")
        for _ in range(2):
            turn = conversation.encode(f"{said}<|end|>")
            rows.append((prompt, turn))
            found = conversation.observation_ids("<information>1. Amber: Anna.</information>", True)
            prompt, said = [*prompt, *turn, *found], f"<mem>so far {number}</mem>{TEXTS[0]}"
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        for prompt, turn in rows:
            labels = torch.tensor([[-100] * len(prompt) + turn])
            model(torch.tensor([prompt + turn]), labels=labels).loss.backward()
        optimizer.step()
    return model


def test_circles_are_written_down_as_the_engine_would_sample_them(
    engine: Engine, folder: Path
) -> None:
    """Whole trajectories, several at a time, with and without ``reuse_repeats``. Ids, texts and
    counts are the same; log-probabilities up to how requests share a batch."""
    conversation = Conversation(AutoTokenizer.from_pretrained(folder), None)
    model = taught_to_walk_in_circles(folder, conversation)
    engine.sync((name, value.detach()) for name, value in model.named_parameters())
    retrievers = {"default": FakeRetriever({"founder of Amber Works": "Anna."})}
    toolbox = ToolBox(retrievers, RetrieverConfig())
    rollout = Rollout(engine, conversation, toolbox, jinja2.Template("{{ question }}"))
    tasks = [
        Task(str(number), (Objective(f"Who founded Amber Works {number}?", ("Anna",)),))
        for number in range(4)
    ]

    def make(reuse: bool) -> list[Trajectory]:
        settings = AgentSettings("memory", 16, 600, 60, 60, reuse_repeats=reuse)
        return rollout.collect(tasks, 1, settings, Sampling(temperature=0.0))

    long, short = make(False), make(True)
    assert all(one.rounds[1].argument == "founder of Amber Works" for one in long)
    for one, other in zip(long, short, strict=True):
        pairs = list(zip(one.sequences, other.sequences, strict=True))
        for its, others in pairs:
            found = [value for value in others.logprobs if value is not None]
            wanted = [value for value in its.logprobs if value is not None]
            assert found == pytest.approx(wanted, rel=0, abs=1e-5)
        same = [replace(others, logprobs=its.logprobs) for its, others in pairs]
        assert replace(other, sequences=same, repeated_rounds=0) == one
        assert (one.repeated_rounds, len(one.rounds)) == (0, 16)
        assert other.repeated_rounds >= 8
