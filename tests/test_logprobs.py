"""Log-probabilities of given tokens against a plain log-softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.logprobs import token_logprobs

VOCABULARY = 60
ROWS = ([3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9], [2, 7])
WANTED = ([2, 3, 6], [1], [])


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
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_against_a_plain_log_softmax(model: Any, side: str, temperature: float) -> None:
    """trl 3029, 4873: the sampling temperature belongs to the log-probabilities."""
    ids, attention, wanted, columns = padded(side)
    with torch.no_grad():
        result = token_logprobs(model, ids, attention, wanted, temperature, with_entropy=True)
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
        plain = token_logprobs(model, ids, attention, wanted)
        cooler = token_logprobs(model, ids, attention, wanted, 0.7)
    assert plain.entropy is None
    assert float((plain.logprobs - cooler.logprobs).abs().max()) > 0.01


def test_gradient_equals_that_of_a_plain_log_softmax(model: Any) -> None:
    ids, attention, wanted, _ = padded("left")
    model.zero_grad()
    token_logprobs(model, ids, attention, wanted).logprobs.sum().backward()
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


@pytest.mark.parametrize("with_entropy", [False, True])
def test_nothing_wanted_gives_zeros_with_a_gradient_of_zero(model: Any, with_entropy: bool) -> None:
    ids, attention, wanted, _ = padded("right")
    model.zero_grad()
    result = token_logprobs(model, ids, attention, wanted & False, with_entropy=with_entropy)
    assert not result.logprobs.any()
    result.logprobs.sum().backward()
    grads = [p.grad for p in model.parameters()]
    assert all(grad is not None and not grad.any() for grad in grads)
    if with_entropy:
        assert result.entropy is not None
        assert not result.entropy.any()


def test_the_model_is_left_as_it_was(model: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=attention).logits
        token_logprobs(model, ids, attention, wanted)
        after = model(input_ids=ids, attention_mask=attention).logits
    assert torch.equal(before, after)
    assert after.shape == (*ids.shape, VOCABULARY)


def test_the_first_token_has_no_logprob(model: Any) -> None:
    ids, attention, wanted, _ = padded("right")
    wanted[1, 0] = True
    with pytest.raises(ValueError, match="nothing precedes it"):
        token_logprobs(model, ids, attention, wanted)
