"""Keys and values of a beginning that several sequences share, computed once and gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import DynamicCache


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
    return None


def common_start(sequences: Sequence[Sequence[int]], limit: int) -> int:
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
