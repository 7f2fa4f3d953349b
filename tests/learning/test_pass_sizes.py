"""How much a pass holds, by device (section 6)."""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.learning.pass_sizes import (
    key_value_bytes,
    logit_elements,
    scoring_tokens,
    tokens_within,
)

GIB = 2**30


def test_on_a_cpu_it_is_what_it_was_unless_set() -> None:
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=8,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    )
    assert scoring_tokens(None, model) == 4096
    assert scoring_tokens(77, model) == 77
    assert logit_elements(torch.device("cpu")) * 4 == 128 * 2**20
    assert logit_elements(torch.device("cuda")) * 4 == 256 * 2**20


def test_keys_and_values_of_a_pass_take_at_most_a_tenth_of_the_gpu() -> None:
    """Qwen2.5-7B: 28 layers of 4 heads of 128, 56 KiB a token in bfloat16 (keys and values); 72B:
    80 layers of 8 heads, 320 KiB."""
    seven = Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4
    )
    large = Qwen2Config(
        hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8
    )
    assert key_value_bytes(seven, 2) == 56 * 1024
    assert key_value_bytes(large, 2) == 320 * 1024
    assert tokens_within(80 * GIB, 56 * 1024, sharded=False) == 16384
    assert tokens_within(80 * GIB, 56 * 1024, sharded=True) == 32768
    # A tenth of 80 GiB holds 26,214 tokens of 320 KiB, which are 25 times 1,024.
    assert tokens_within(80 * GIB, 320 * 1024, sharded=True) == 25 * 1024
    assert tokens_within(4 * GIB, 320 * 1024, sharded=False) == 4096
