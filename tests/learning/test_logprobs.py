"""Log-probabilities of given tokens against a plain log-softmax (specification section 8)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.models.checkpointing import enable_gradient_checkpointing

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 60
ROWS = ([3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9], [2, 7])
WANTED: tuple[list[int], ...] = ([2, 3, 6], [1], [])


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            initializer_range=0.4,
        )
    )


def padded(side: str) -> tuple[Tensor, Tensor, Tensor, list[list[int]]]:
    """ids, attention mask, wanted positions, and the columns of the wanted tokens."""
    width = max(map(len, ROWS)) + 2
    ids = torch.full((len(ROWS), width), 1)
    attention = torch.zeros_like(ids)
    wanted = torch.zeros(ids.shape, dtype=torch.bool)
    columns = []
    for index, (row, places) in enumerate(zip(ROWS, WANTED, strict=True)):
        first = 0 if side == "right" else width - len(row)
        ids[index, first : first + len(row)] = torch.tensor(row)
        attention[index, first : first + len(row)] = 1
        columns.append([first + place for place in places])
        wanted[index, columns[-1]] = True
    return ids, attention, wanted, columns


def distributions(model: Any, row: list[int], temperature: float) -> Tensor:
    """Log-probabilities after each prefix of a row, from a forward pass of its own, [T, V]."""
    logits = model(input_ids=torch.tensor([row])).logits[0].double()
    return torch.log_softmax(logits / temperature, dim=-1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_keeps_positions(side: str) -> None:
    """With embeddings of positions; rotary ones do not change when all positions move."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    absolute = GPT2LMHeadModel(config).eval()
    absolute.transformer.wpe.weight.data.mul_(50)
    ids, attention, wanted, columns = padded(side)
    with torch.no_grad():
        found = token_logprobs(absolute, WantedTokens(ids, attention, wanted)).logprobs
        for index, (row, places) in enumerate(zip(ROWS, WANTED, strict=True)):
            alone = distributions(absolute, row, 1.0)
            for place, column in zip(places, columns[index], strict=True):
                expected = float(alone[place - 1, row[place]])
                assert float(found[index, column]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trl_3029_trl_4873_against_a_plain_log_softmax(
    model: Any, side: str, temperature: float
) -> None:
    """The sampling temperature belongs to the log-probabilities."""
    ids, attention, wanted, columns = padded(side)
    with torch.no_grad():
        result = token_logprobs(
            model, WantedTokens(ids, attention, wanted), temperature, entropy="trained"
        )
        expected, entropy = torch.zeros(ids.shape), torch.zeros(ids.shape)
        for index, (row, places) in enumerate(zip(ROWS, WANTED, strict=True)):
            logp = distributions(model, row, temperature)
            for place, column in zip(places, columns[index], strict=True):
                expected[index, column] = logp[place - 1, row[place]]
                entropy[index, column] = -(logp[place - 1].exp() * logp[place - 1]).sum()
    assert result.entropy is not None
    torch.testing.assert_close(result.logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.entropy, entropy, atol=1e-5, rtol=1e-5)
    assert int((result.logprobs != 0).sum()) == 4
    assert float(result.entropy.max()) > 0.1


def test_temperature_changes_the_numbers(model: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    with torch.no_grad():
        plain = token_logprobs(model, WantedTokens(ids, attention, wanted))
        cooler = token_logprobs(model, WantedTokens(ids, attention, wanted), 0.7)
    assert plain.entropy is None
    assert float((plain.logprobs - cooler.logprobs).abs().max()) > 0.01


@pytest.mark.parametrize("chunk", [1, 2, 10_000])
def test_trl_4975_gradient_equals_that_of_a_plain_log_softmax(
    model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wanted tokens have holes between them, and none of the others is trained."""
    monkeypatch.setattr("mempo.learning.pass_sizes.CPU_LOGITS", chunk * VOCABULARY)
    ids, attention, wanted, _ = padded("left")
    model.zero_grad()
    token_logprobs(model, WantedTokens(ids, attention, wanted)).logprobs.sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row, places in zip(ROWS, WANTED, strict=True):
        logp = distributions(model, row, 1.0)
        for place in places:
            total = total + logp[place - 1, row[place]]
    total.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4)
    assert max(float(grad.abs().max()) for grad in found.values()) > 0.1


@pytest.mark.parametrize("entropy", ["none", "measured", "trained"])
def test_nothing_wanted_gives_zeros_with_a_gradient_of_zero(model: Any, entropy: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    model.zero_grad()
    result = token_logprobs(model, WantedTokens(ids, attention, wanted & False), entropy=entropy)
    assert not result.logprobs.any()
    result.logprobs.sum().backward()
    grads = [p.grad for p in model.parameters()]
    assert all(grad is not None and not grad.any() for grad in grads)
    if entropy != "none":
        assert result.entropy is not None
        assert not result.entropy.any()


def test_a_measured_entropy_has_the_value_and_no_gradient(model: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    trained = token_logprobs(model, WantedTokens(ids, attention, wanted), 0.7, "trained").entropy
    measured = token_logprobs(model, WantedTokens(ids, attention, wanted), 0.7, "measured").entropy
    assert trained is not None
    assert measured is not None
    torch.testing.assert_close(measured, trained)
    model.zero_grad()
    measured.sum().backward()
    assert not any(p.grad is not None and p.grad.any() for p in model.parameters())
    trained.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_the_model_is_left_as_it_was(model: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=attention).logits
        token_logprobs(model, WantedTokens(ids, attention, wanted))
        after = model(input_ids=ids, attention_mask=attention).logits
    assert torch.equal(before, after)
    assert after.shape == (*ids.shape, VOCABULARY)


def test_the_first_token_has_no_logprob(model: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    wanted[1, 0] = True
    with pytest.raises(ValueError, match="nothing precedes it"):
        token_logprobs(model, WantedTokens(ids, attention, wanted))


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_nothing(model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, attention, wanted, _ = padded("right")
    whole = token_logprobs(model, WantedTokens(ids, attention, wanted), 0.7, entropy="trained")
    monkeypatch.setattr("mempo.learning.pass_sizes.CPU_LOGITS", chunk * VOCABULARY)
    parts = token_logprobs(model, WantedTokens(ids, attention, wanted), 0.7, entropy="trained")
    torch.testing.assert_close(parts.logprobs, whole.logprobs)
    torch.testing.assert_close(parts.entropy, whole.entropy)
    assert parts.logprobs.requires_grad


@pytest.mark.slow
def test_slime_1951_nemo_rl_2871_peak_memory_is_bounded() -> None:
    """8,000 tokens, vocabulary 150,000: all logits in float32 would be 4.8 GB, and their gradient
    as much again. Peak memory is read in a process of its own."""
    program = """
import resource, torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM
from mempo.learning.logprobs import WantedTokens, token_logprobs
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=150_000, hidden_size=8, intermediate_size=8,
    num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1))
ids = torch.randint(0, 150_000, (32, 251))
wanted = torch.ones_like(ids, dtype=torch.bool)
wanted[:, 0] = False
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
token_logprobs(model, WantedTokens(ids, torch.ones_like(ids), wanted)).logprobs.sum().backward()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(int(wanted.sum()), after - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    tokens, kibibytes = map(int, done.stdout.split())
    assert tokens == 8_000
    assert kibibytes < 1.5 * 2**20


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.mark.parametrize("name", ["soft cap", "divisor", "factor"])
def test_what_a_model_does_to_its_logits_is_in_its_logprobs(name: str) -> None:
    """Gemma 2 caps them, Granite divides and Cohere multiplies them; values and gradients."""
    torch.manual_seed(1)
    own: Any = {
        "soft cap": lambda: Gemma2ForCausalLM(
            Gemma2Config(**_SIZES, head_dim=8, final_logit_softcapping=0.7)
        ),
        "divisor": lambda: GraniteForCausalLM(GraniteConfig(**_SIZES, logits_scaling=0.3)),
        "factor": lambda: CohereForCausalLM(CohereConfig(**_SIZES, logit_scale=3.0)),
    }[name]()
    own.eval()
    ids, attention, wanted, columns = padded("right")
    found = token_logprobs(own, WantedTokens(ids, attention, wanted)).logprobs
    found.sum().backward()
    gradient = own.get_input_embeddings().weight.grad.clone()
    own.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for index, (row, places) in enumerate(zip(ROWS, WANTED, strict=True)):
        alone = distributions(own, row, 1.0)
        for place, column in zip(places, columns[index], strict=True):
            expected = alone[place - 1, row[place]]
            assert found[index, column].item() == pytest.approx(expected.item(), abs=1e-5)
            total = total + expected
    total.backward()
    expected = own.get_input_embeddings().weight.grad
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_a_setting_that_the_model_does_not_read_changes_nothing(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, attention, wanted, _ = padded("right")
    plain = token_logprobs(model, WantedTokens(ids, attention, wanted)).logprobs
    monkeypatch.setattr(model.config, "final_logit_softcapping", 0.1, raising=False)
    assert torch.equal(token_logprobs(model, WantedTokens(ids, attention, wanted)).logprobs, plain)


def test_models_that_change_their_logits_in_an_unknown_way_are_refused(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = type(model).forward

    def halved(self: Any, *arguments: Any, **named: Any) -> Any:
        output = own(self, *arguments, **named)
        output.logits = output.logits / 2
        return output

    monkeypatch.setattr(type(model), "forward", halved)
    ids, attention, wanted, _ = padded("right")
    with pytest.raises(NotImplementedError, match="changes its logits after the output layer"):
        token_logprobs(model, WantedTokens(ids, attention, wanted))


SHARED = 12


def rows_behind_a_prompt(own: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three right-padded rows of ``own``, ``own`` - 1 and 2 tokens behind one prompt."""
    generator = torch.Generator().manual_seed(3)
    lengths = [SHARED + own, SHARED + own - 1, SHARED + 2]
    ids = torch.randint(VOCABULARY, (3, SHARED + own), generator=generator)
    ids[:, :SHARED] = ids[0, :SHARED]
    attention = torch.arange(SHARED + own) < torch.tensor(lengths).unsqueeze(1)
    wanted = attention & (torch.arange(SHARED + own) > SHARED)
    return ids, attention.long(), wanted


@pytest.mark.parametrize("again", [False, True, "selective"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("own", [5, 60])
def test_a_prompt_that_is_computed_once_changes_nothing(
    model: Any, own: int, attention: str, again: Any
) -> None:
    """Values and gradients, for rows that get a mask on CPUs and for rows that get none, in two
    passes and, with gradient checkpointing, in one."""
    ids, padding, wanted = rows_behind_a_prompt(own)
    model.set_attn_implementation(attention)
    found, gradients = [], []
    for shared in (0, SHARED):
        model.zero_grad()
        if shared and again:
            enable_gradient_checkpointing(model.train(), again)
        result = token_logprobs(model, WantedTokens(ids, padding, wanted, shared), 0.7, "trained")
        assert result.entropy is not None
        (result.logprobs.sum() + 0.1 * result.entropy.square().sum()).backward()
        found.append(torch.stack([result.logprobs, result.entropy]).detach())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    model.eval()
    model.gradient_checkpointing_disable()
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
    assert int((found[0][0] != 0).sum()) == (own - 1) + (own - 2) + 1
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, atol=1e-3, rtol=1e-4)
    assert max(float(grad.abs().max()) for grad in gradients[0].values()) > 1.0


def test_one_pass_refuses_what_would_give_another_gradient(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that are computed again without the attention of their first time, and attention that
    is not known."""
    tokens = WantedTokens(*rows_behind_a_prompt(5), SHARED)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    with pytest.raises(ValueError, match="not enabled by enable_gradient_checkpointing"):
        token_logprobs(model, tokens)
    enable_gradient_checkpointing(model, True)
    monkeypatch.setattr(model.config, "_attn_implementation", "flex_attention")
    with pytest.raises(ValueError, match=r"model\.attention=flex_attention .*share_prompts=false"):
        token_logprobs(model, tokens)
    model.gradient_checkpointing_disable()
    model.eval()


def test_what_shared_tokens_predict_cannot_be_wanted(model: Any) -> None:
    ids, padding, wanted = rows_behind_a_prompt(4)
    wanted[1, SHARED] = True
    with pytest.raises(ValueError, match="12 tokens cannot be computed once for all rows"):
        token_logprobs(model, WantedTokens(ids, padding, wanted, SHARED))
    left = padding.flip(1)
    with pytest.raises(ValueError, match="rows begin with padding"):
        token_logprobs(model, WantedTokens(ids, left, torch.zeros_like(wanted), SHARED))
