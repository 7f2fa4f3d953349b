"""Rows laid end to end, without padding: the numbers of padded rows (around the method)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.learning import packed_attention
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.packed_rows import PackedRows, packs_rows
from mempo.models.checkpointing import enable_gradient_checkpointing

VOCABULARY = 60
SHARED = 12
LENGTHS = ([18, 18, 15, 9, 2], [30, 14, 14, 13])
"""Of rows that share nothing, two of them equally long; behind a prompt, one with one token."""


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.4,
        )
    ).eval()


def rows(shared: int, packed: bool) -> WantedTokens:
    lengths = LENGTHS[bool(shared)]
    ids = torch.randint(VOCABULARY, (len(lengths), lengths[0]), generator=torch.manual_seed(3))
    ids[:, :shared] = ids[0, :shared]
    real = torch.arange(lengths[0]) < torch.tensor(lengths).unsqueeze(1)
    wanted = real & (torch.arange(lengths[0]) > shared)
    return WantedTokens(ids * real, real.long(), wanted, shared if packed else 0, packed)


def found(model: Any, tokens: WantedTokens) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities and entropies, and the gradient of a sum of both."""
    model.zero_grad()
    result = token_logprobs(model, tokens, 0.7, "trained")
    assert result.entropy is not None
    weights = torch.linspace(-1, 2, tokens.ids.numel()).view(tokens.ids.shape)
    ((weights * result.logprobs).sum() + result.entropy.square().sum()).backward()
    values = torch.stack([result.logprobs, result.entropy]).detach()
    return values, {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_same(model: Any, shared: int, prepare: Callable[[], None] = lambda: None) -> None:
    expected, expected_gradient = found(model, rows(shared, packed=False))
    prepare()
    values, gradient = found(model, rows(shared, packed=True))
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
    for name, each in expected_gradient.items():
        torch.testing.assert_close(gradient[name], each, atol=1e-3, rtol=1e-4)
    assert max(float(each.abs().max()) for each in gradient.values()) > 1.0


@pytest.mark.parametrize("again", [False, True, "selective"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shared", [0, SHARED])
def test_packed_rows_give_the_numbers_of_padded_ones(
    model: Any, shared: int, attention: str, again: Any
) -> None:
    model.set_attn_implementation(attention)

    def prepare() -> None:
        if again:
            enable_gradient_checkpointing(model.train(), again)

    assert_same(model, shared, prepare)
    assert model.config._attn_implementation == attention


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first_query: Tensor,
    first_key: Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What torch's kernel computes, by its documentation, [N, H, D]: sequence by sequence, head by
    head, the last query beside the last key."""
    assert (window_size, enable_gqa) == ((-1, 0), True)
    assert first_query.dtype == first_key.dtype == torch.int32
    sizes = [first.diff().tolist() for first in (first_query, first_key)]
    assert [max(each) for each in sizes] == [most_queries, most_keys]
    assert [sum(each) for each in sizes] == [len(query), len(key)]
    outputs = []
    for own, number in zip(torch.split(query, sizes[0]), range(len(sizes[1])), strict=True):
        start, end = first_key[number : number + 2].tolist()
        past = end - start - len(own)
        visible = torch.arange(end - start) <= torch.arange(len(own)).unsqueeze(1) + past
        heads = []
        for head in range(query.shape[1]):
            group = head // (query.shape[1] // key.shape[1])
            scores = own[:, head] @ key[start:end, group].T * scale
            weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
            heads.append(weights @ value[start:end, group])
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("shared", [0, SHARED])
def test_the_kernel_of_gpus_is_given_the_right_sequences(
    model: Any, monkeypatch: pytest.MonkeyPatch, shared: int, again: bool
) -> None:
    """All but the kernel itself, which only a GPU has (``make gpu-check`` runs it)."""
    calls: list[int] = []

    def kernel(*tensors: Any, **named: Any) -> Tensor:
        calls.append(len(tensors[0]))
        return reference(*tensors, **named)

    def prepare() -> None:
        monkeypatch.setattr(packed_attention, "has_kernel", lambda query, value: True)
        monkeypatch.setattr(packed_attention, "varlen_attn", kernel)
        if again:
            enable_gradient_checkpointing(model.train(), True)

    assert_same(model, shared, prepare)
    tokens = sum(LENGTHS[bool(shared)]) - shared * (len(LENGTHS[1]) - 1) * bool(shared)
    assert calls == [tokens] * (2 + 2 * again)  # two layers, computed twice where nothing is kept


def test_where_tokens_stand() -> None:
    layout = PackedRows(2, (3, 1, 2))
    ids = torch.tensor([[7, 8, 1, 2, 3], [7, 8, 4, 0, 0], [7, 8, 5, 6, 0]])
    assert PackedRows.of((ids > 0).long(), 2) == layout
    assert layout.end_to_end(ids).tolist() == [[7, 8, 1, 2, 3, 4, 5, 6]]
    assert layout.positions(ids.device).tolist() == [[0, 1, 2, 3, 4, 2, 2, 3]]
    places = layout.places(torch.tensor([0, 0, 1, 2]), torch.tensor([1, 4, 2, 3]))
    assert places.tolist() == [1, 4, 5, 7]


def test_a_rank_without_rows_makes_a_pass_with_no_gradient(model: Any) -> None:
    ids = torch.zeros(1, 2, dtype=torch.long)
    real, wanted = torch.tensor([[1, 0]]), torch.zeros(1, 2, dtype=torch.bool)
    logprobs = token_logprobs(model, WantedTokens(ids, real, wanted, packed=True)).logprobs
    assert logprobs.tolist() == [[0.0, 0.0]]
    logprobs.sum().backward()
    assert all(float(p.grad.abs().max()) == 0 for p in model.parameters())


def test_padding_in_front_is_refused(model: Any) -> None:
    tokens = rows(0, packed=True)
    left = WantedTokens(tokens.ids, tokens.attention_mask.flip(1), tokens.wanted & False, 0, True)
    with pytest.raises(ValueError, match="cannot be packed"):
        token_logprobs(model, left)


def test_by_default_on_gpus_and_never_for_attention_that_is_not_known(model: Any) -> None:
    assert [packs_rows(setting, model) for setting in (None, True, False)] == [False, True, False]
    model.config.sliding_window = 4
    model.config.layer_types = ["sliding_attention", "full_attention"]
    assert not packs_rows(True, model)
    model.config.layer_types = ["full_attention"] * 2
    model.config._attn_implementation = "flex_attention"
    assert not packs_rows(True, model)
