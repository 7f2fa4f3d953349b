"""Keys and values of a beginning that several sequences share, computed once and gone on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

Tokens = TypeVar("Tokens", list[int], tuple[int, ...])

_BEHIND_PREFIX = "sdpa_behind_prefix"

_CPU_BLOCK = 512
_MASKED_COST = 1.3
"""Keys in a block of torch's attention kernel for CPUs, and its time for a pair with a mask over
one without, as measured."""


def unsupported_reason(model: Any) -> str | None:
    """Why keys and values of a prefix cannot be reused as they are, ``None`` if they can."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return f"it has layers of the kind {', '.join(sorted(kinds))}"
    if not hasattr(config, "layer_types") and getattr(config, "sliding_window", None):
        return "its attention has a sliding window"
    if getattr(model, "_is_stateful", False):
        return "it has recurrent layers"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention is one of its own"
    return None


def common_start(sequences: Sequence[Tokens], limit: int) -> int:
    """How many tokens all ``sequences`` begin with, at most ``limit``."""
    first, last = min(sequences), max(sequences)
    # Whatever the smallest and the largest of sorted sequences begin with, all between begin with.
    longest = max(min(limit, len(first), len(last)), 0)
    return next((i for i in range(longest) if first[i] != last[i]), longest)


def prefix_cache(model: Any, ids: Tensor, copies: int) -> DynamicCache:
    """Keys and values of ``ids`` [1, S], for ``copies`` rows that go on from them. Gradients flow
    through them where they are enabled."""
    cache = DynamicCache()
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(copies)
    return cache


@contextmanager
def attention_behind_prefix(model: Any) -> Iterator[None]:
    """Within the block ``sdpa`` goes on from kept keys and values as ``causal_behind_prefix``
    does. ``eager`` and flash attention stay as they are."""
    config = model.config
    chosen = config._attn_implementation
    if chosen == "sdpa":
        config._attn_implementation = _BEHIND_PREFIX
    try:
        yield
    finally:
        config._attn_implementation = chosen


def causal_behind_prefix(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Causal attention of the last tokens, ``query`` [B, H, Q, D], to all, ``key`` and ``value``
    [B, K, T, D]; the output is [B, Q, H, D].

    torch's causal attention takes the first query for the first token. So empty queries stand for
    the kept tokens, and what they give is dropped. On CPUs a mask can be cheaper: their kernel
    skips what causality forbids in whole blocks of keys only, and a mask spares it the empty
    queries for about a third more time a pair.
    """
    length, all_length = query.shape[2], key.shape[2]
    kept = all_length - length
    keys_per_query = min(all_length, (all_length + _CPU_BLOCK) / 2)
    if query.device.type == "cpu" and _MASKED_COST * length < keys_per_query:
        visible = torch.ones(length, all_length, dtype=torch.bool).tril(kept)
        output, _ = sdpa_attention_forward(
            module, query, key, value, visible[None, None], **settings
        )
        return output, None
    query = torch.nn.functional.pad(query, (0, 0, kept, 0))
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    return output[:, kept:], None


# A name that transformers knows no mask for gets none.
AttentionInterface.register(_BEHIND_PREFIX, causal_behind_prefix)
