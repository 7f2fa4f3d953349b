"""The output layer replaced while a model runs, and what models do to the logits that it gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

_NEUTRAL = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0}
"""What Gemma 2 (a soft cap), Granite (a divisor) and Cohere (a factor) call what they do to their
logits, and the value that does nothing."""

Logits = Callable[[Tensor], Tensor]


@contextmanager
def output_layer_as(model: Any, function: Callable[[Logits, Tensor], Tensor]) -> Iterator[None]:
    """Within the block the output layer returns ``function(logits, hidden states)``.

    ``logits`` gives the model's logits of hidden states in float32. What the model does to them
    after its output layer is done in ``logits``, and not to what ``function`` returns.
    """
    whole: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    head = whole.get_output_embeddings()
    own, replaced = head.forward, "forward" in vars(head)
    with _logits_left_alone(whole) as change:
        head.forward = lambda hidden: function(lambda states: change(own(states).float()), hidden)
        try:
            yield
        finally:
            del head.forward
            if replaced:
                head.forward = own


@contextmanager
def _logits_left_alone(model: Any) -> Iterator[Logits]:
    """Within the block the model does nothing to what its output layer gives; yields what it does
    otherwise. A setting that its own forward does not read (a stray one in its configuration) is no
    such thing."""
    read = set(_forward_code(model).co_names)
    found: dict[str, tuple[Any, Any]] = {}
    for name, neutral in _NEUTRAL.items():
        holder = model if hasattr(model, name) else getattr(model, "config", None)
        if name in read and getattr(holder, name, None) not in (None, neutral):
            found[name] = (holder, getattr(holder, name))
    cap, divisor, factor = (found.get(name, (None, None))[1] for name in _NEUTRAL)

    def change(logits: Tensor) -> Tensor:
        if divisor is not None:
            logits = logits / divisor
        if factor is not None:
            logits = logits * factor
        return logits if cap is None else cap * torch.tanh(logits / cap)

    for name, (holder, _) in found.items():
        setattr(holder, name, _NEUTRAL[name])
    try:
        yield change
    finally:
        for name, (holder, value) in found.items():
            setattr(holder, name, value)


def _forward_code(model: Any) -> Any:
    """The code of the class's own forward: ``fully_shard`` puts a class of its own before it, and
    transformers wraps it."""
    return inspect.unwrap(type(model).forward).__code__
