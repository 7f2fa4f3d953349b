"""LoRA adapters: merged for the engine one parameter at a time (specification section 10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from mempo.command.cli import compose
from mempo.command.memory_estimate import adapter_parameters, estimate_memory
from mempo.config import LoraSettings
from mempo.learning.batches import collate
from mempo.learning.micro_batches import TrainingRow
from mempo.models.lora import add_adapters, named_weights, without_adapters
from mempo.models.saving import save_policy, whole_weights
from mempo.runtime.errors import ConfigError
from mempo.training.module import MemPOModule
from mempo.trajectory import Objective, SpanKind, Task, TokenSequence, Trajectory
from tests.support.families import write_family

IDS = torch.tensor([[1, 5, 9, 2, 7, 30, 4]])


def make_model() -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=50,
            hidden_size=64,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            initializer_range=0.2,
        )
    ).eval()


def with_moved_adapters(dtype: torch.dtype = torch.float32, **settings: Any) -> PeftModel:
    """Adapters start at an update of 0: these are somewhere else."""
    return move(add_adapters(make_model().to(dtype), LoraSettings(rank=4, alpha=8, **settings)))


def move(model: PeftModel) -> PeftModel:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.1)
    return model.eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


def test_only_adapters_are_trained() -> None:
    model = add_adapters(make_model(), LoraSettings(rank=4))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 7
    assert all(".lora_" in name for name in trained)
    torch.testing.assert_close(logits(model), logits(make_model()))


@pytest.mark.parametrize("target", ["all-linear", ("q_proj", "down_proj")])
def test_merged_weights_are_the_adapted_model(target: Any) -> None:
    model = with_moved_adapters(target_modules=target)
    plain = make_model()
    weights = dict(named_weights(model))
    assert weights.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(weights, strict=False)
    assert float((logits(plain) - logits(make_model())).abs().max()) > 0.1
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)


def named_and_own(tied: bool, targets: Any) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """What the engine and the saved model get of a model with moved adapters, that model, and one
    without them."""
    model = make_model()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    adapted = move(add_adapters(model, LoraSettings(rank=4, alpha=8, target_modules=targets)))
    plain = make_model()
    if tied:
        plain.config.tie_word_embeddings = True
        plain.tie_weights()
    return dict(named_weights(adapted)), adapted, plain


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "targets", ["all-linear", ("q_proj",), ("lm_head",), ("q_proj", "lm_head"), ("embed_tokens",)]
)
def test_targets_reach_the_merged_weights_or_are_refused(tied: bool, targets: Any) -> None:
    if "embed_tokens" in targets:
        with pytest.raises(ConfigError, match=r"embed_tokens is the embedding.*q_proj"):
            named_and_own(tied, targets)
        return
    if tied and "lm_head" in targets:
        with pytest.raises(ConfigError, match=r"lm_head is this model's output layer and tied"):
            named_and_own(tied, targets)
        return
    weights, adapted, plain = named_and_own(tied, targets)
    assert weights.keys() == dict(plain.named_parameters()).keys()
    before = logits(plain)
    plain.load_state_dict(weights, strict=False)
    assert float((logits(plain) - before).abs().max()) > 0.1
    torch.testing.assert_close(logits(plain), logits(adapted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "falcon", "phi3"])
def test_what_is_saved_is_the_adapted_model(family: str, tmp_path: Path) -> None:
    """GPT-2 holds weights the other way round, GPT-NeoX stores its output layer under another
    name."""
    plain = write_family(family, tmp_path / "start")
    before = logits(plain)
    adapted = move(add_adapters(plain, LoraSettings(rank=4, alpha=8)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "start")
    save_policy(adapted, whole_weights(adapted, keep=True), tmp_path / "model", tokenizer)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert float((logits(opened) - before).abs().max()) > 0.1
    torch.testing.assert_close(logits(opened), logits(adapted), rtol=1e-4, atol=1e-4)
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()


def test_an_unknown_target_is_told_with_those_that_there_are() -> None:
    for targets in (("query",), ("q_proj", "query"), ("norm",)):
        with pytest.raises(ConfigError) as error:
            add_adapters(make_model(), LoraSettings(target_modules=targets))
        assert f"no linear layer {targets[-1]}" in str(error.value)
        assert "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj" in str(error.value)


def test_without_adapters_it_is_the_start() -> None:
    model = with_moved_adapters()
    with without_adapters(model):
        torch.testing.assert_close(logits(model), logits(make_model()))
    assert float((logits(model) - logits(make_model())).abs().max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trl_6688_a_hundred_merges_leave_base_weights_bitwise_equal(dtype: torch.dtype) -> None:
    model = with_moved_adapters(dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: value.clone() for name, value in named_weights(model)}
    for _ in range(100):
        for name, value in named_weights(model):
            assert value.dtype == dtype
            assert torch.equal(value, first[name])
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.slow
def test_trl_6688_a_hundred_syncs_with_the_engine(tmp_path: Path) -> None:
    """The engine samples from the merged weights, after the first sync as after the last."""
    from mempo.config import EngineConfig
    from mempo.engine.interface import Sampling
    from mempo.engine.vllm_engine import Engine

    make_model().save_pretrained(tmp_path)
    model = with_moved_adapters()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    engine = Engine(str(tmp_path), EngineConfig(max_model_len=64))
    prompt, sampled = IDS[0].tolist(), []
    try:
        for _ in range(100):
            engine.sync(named_weights(model))
        engine.submit("a", prompt, 8, 0, Sampling(1.0, 1.0, -1))
        while engine.has_unfinished():
            sampled += engine.step()
    finally:
        engine.close()
    (generation,) = sampled
    ids = torch.tensor([[*prompt, *generation.ids]])
    with torch.no_grad():
        logp = model(input_ids=ids).logits[0].log_softmax(-1)
    expected = [
        float(logp[len(prompt) + place - 1, token]) for place, token in enumerate(generation.ids)
    ]
    assert generation.logprobs == pytest.approx(expected, abs=1e-4)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def make_batch() -> Any:
    sequence = TokenSequence()
    sequence.append_context(IDS[0, :4].tolist())
    sequence.append_policy(IDS[0, 4:].tolist(), [-1.0] * 3, [SpanKind.ACTION] * 3)
    sequence.advantages = [0.0] * 4 + [1.0, -0.5, 2.0]
    trajectory = Trajectory(Task("t", (Objective("q", ("g",)),)), 0, 0, 4, [sequence])
    return collate([TrainingRow(trajectory, sequence, 1 / 3)], last_of_update=True)


def test_the_kl_reference_is_the_model_without_adapters() -> None:
    """Against a separate copy of the start; loss and gradient are the same."""
    config = compose("train", ["lora=default", "loss.kl_coefficient=0.5"])
    losses, gradients = [], []
    for reference in (None, make_model()):
        module = MemPOModule(with_moved_adapters(), config, reference)
        loss, metrics = module.loss(make_batch())
        assert float(metrics["kl_sum"]) != 0.0
        loss.backward()
        losses.append(float(loss))
        gradients.append({n: p.grad for n, p in module.model.named_parameters() if p.requires_grad})
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])


def test_the_plan_counts_adapters() -> None:
    config = compose("train", ["model=qwen2_5_7b", "lora=default", "trainer=fsdp2"])
    architecture = config.model.architecture
    assert architecture is not None
    # Qwen2.5-7B: 28 layers of widths 3584, 512 for keys and values, 18944 inside.
    per_layer = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert adapter_parameters(architecture, 16) == 28 * 16 * per_layer
    memory = estimate_memory(config, architecture, 8)
    trained = -(-28 * 16 * per_layer // 8)
    assert memory.optimizer_states == 8 * trained
    assert memory.gradients == 4 * trained
    # Frozen weights in bfloat16, adapters in float32.
    assert memory.weights == 2 * -(-7_615_616_512 // 8) + 4 * trained
    assert memory.lower_copies == 0


def test_adapter_parameters_equal_those_of_a_built_model() -> None:
    from mempo.config import ArchitectureConfig

    model = add_adapters(make_model(), LoraSettings(rank=4))
    built = sum(p.numel() for p in model.parameters() if p.requires_grad)
    architecture = ArchitectureConfig(
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=50,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        attention_bias=True,
    )
    assert adapter_parameters(architecture, 4) == built


def test_a_wrong_setting_says_so() -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.rank"):
        compose("train", ["lora=default", "model.lora.rank=0"])
