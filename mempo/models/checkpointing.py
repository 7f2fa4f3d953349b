"""Gradient checkpointing: what a layer keeps for the backward pass, and what is computed again."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
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
    )
}
"""Nearly all of a layer's time: projections and attention."""


def enable_gradient_checkpointing(model: Any, setting: bool | Literal["selective"]) -> None:
    """``True`` keeps a layer's input and computes the layer again; ``selective`` keeps the results
    of matrix products and attention and computes the rest again, which costs little time.

    Models that transformers loads are in eval mode, in which neither has an effect.
    """
    settings: dict[str, Any] = {"use_reentrant": False}
    if setting == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    if setting:
        model.gradient_checkpointing_enable(settings)


def _policy(context: Any, operator: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    kept = operator in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
