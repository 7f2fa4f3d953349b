"""Gradient checkpointing: the same gradients, and what is computed again (around section 8)."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.models.checkpointing import enable_gradient_checkpointing

LAYERS = 3
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


class Counted(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def gradients(
    kind: str, setting: bool | Literal["selective"]
) -> tuple[dict[str, Tensor], dict[str, int]]:
    torch.manual_seed(0)
    model: Any = (
        LlamaForCausalLM(LlamaConfig(**SIZES))
        if kind == "llama"
        else Qwen2ForCausalLM(Qwen2Config(**SIZES))
    ).train()
    enable_gradient_checkpointing(model, setting)
    ids = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(1))
    wanted = torch.zeros(ids.shape, dtype=torch.bool)
    wanted[:, 7:15] = True
    with Counted() as counted:
        token_logprobs(
            model, WantedTokens(ids, torch.ones_like(ids), wanted)
        ).logprobs.sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}, counted.calls


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_selective_checkpointing_repeats_neither_matrix_products_nor_attention(kind: str) -> None:
    """A layer has seven projections, one attention, and one activation function; with biases, as
    Qwen2 has in three of them, a projection is an addmm."""
    plain, plain_calls = gradients(kind, False)
    full, full_calls = gradients(kind, True)
    selective, selective_calls = gradients(kind, "selective")
    for found in (full, selective):
        for name, expected in plain.items():
            torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-6)
    attention = "_scaled_dot_product_flash_attention_for_cpu"

    def extra(calls: dict[str, int], *names: str) -> int:
        return sum(calls.get(name, 0) - plain_calls.get(name, 0) for name in names)

    assert plain_calls[attention] == LAYERS
    assert extra(full_calls, attention) == LAYERS
    assert extra(full_calls, "mm", "addmm") >= 6 * LAYERS  # the last one's result is not needed
    assert extra(selective_calls, attention) == 0
    assert extra(selective_calls, "mm", "addmm") == 0
    assert extra(selective_calls, "silu") == extra(full_calls, "silu") == LAYERS
