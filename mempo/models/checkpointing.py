"""Gradient checkpointing: what a layer keeps for the backward pass, and what is computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.attention.varlen  # registers its operator
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_aten = torch.ops.aten
_KEPT = {
    operator.default
    for operator in (
        _aten.mm,
        _aten.addmm,
        _aten._scaled_dot_product_flash_attention,
        _aten._scaled_dot_product_efficient_attention,
        _aten._scaled_dot_product_cudnn_attention,
        _aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.torch_attn._varlen_attn,
    )
}
"""Nearly all of a layer's time: projections and attention."""


def enable_gradient_checkpointing(model: Any, setting: bool | Literal["selective"]) -> None:
    """``True`` keeps a layer's input and computes the layer again; ``selective`` keeps the results
    of matrix products and attention and computes the rest again, which costs little time.

    A layer that is computed again uses the attention of its first computation, whatever the model
    is set to by then. Models that transformers loads are in eval mode, in which none of this has an
    effect.
    """
    if setting:
        contexts = partial(_contexts, model.config, setting == "selective")
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def repeats_attention(model: Any) -> bool:
    """Whether ``enable_gradient_checkpointing`` has enabled it."""
    functions = (getattr(part, "_gradient_checkpointing_func", None) for part in model.modules())
    contexts = [
        getattr(function, "keywords", {}).get("context_fn")
        for function in functions
        if function is not None
    ]
    return all(getattr(one, "func", None) is _contexts for one in contexts)


def _contexts(config: Any, selective: bool) -> tuple[Any, Any]:
    """Around a layer's first computation, which is about to begin, and around its second."""
    first, second = _selective_contexts() if selective else (nullcontext(), nullcontext())
    return first, _with_attention(config, config._attn_implementation, second)


@contextmanager
def _with_attention(config: Any, name: str, inner: AbstractContextManager[Any]) -> Iterator[None]:
    later = config._attn_implementation
    config._attn_implementation = name
    try:
        with inner:
            yield
    finally:
        config._attn_implementation = later


def _policy(context: Any, operator: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    kept = operator in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


_selective_contexts = partial(create_selective_checkpoint_contexts, _policy)
