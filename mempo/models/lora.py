"""LoRA adapters (``peft``): the policy trains low-rank updates beside frozen weights.

The engine and the saved model get merged weights, computed one parameter at a time from the frozen
weight and its adapter. Nothing is ever merged in place, so that base weights stay bitwise as they
were, however often weights are synced. Without its adapters the model is the frozen reference of
the KL term.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor

from mempo.config import LoraSettings

_ADAPTER = "default"
_BASE = ".base_layer"


def add_adapters(model: Any, settings: LoraSettings) -> PeftModel:
    """The model with fresh adapters on its linear layers, which alone are trained."""
    return cast(
        PeftModel,
        get_peft_model(
            model,
            LoraConfig(
                r=settings.rank,
                lora_alpha=settings.alpha,
                lora_dropout=settings.dropout,
                target_modules=settings.target_modules
                if settings.target_modules == "all-linear"
                else list(settings.target_modules),
                task_type="CAUSAL_LM",
            ),
            adapter_name=_ADAPTER,
        ),
    )


def without_adapters(model: PeftModel) -> AbstractContextManager[None]:
    """Within the block the model is what it was before training."""
    return cast(AbstractContextManager[None], model.disable_adapter())


def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights by Hugging Face name, one at a time, adapters merged, sharded ones gathered.

    W + scaling · B A is computed in float32 and given in the dtype of W.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = dict(base.named_modules()) if isinstance(model, PeftModel) else {}
    for name, parameter in base.named_parameters():
        if ".lora_" in name:
            continue
        value = _whole(parameter)
        layer_name, _, kind = name.rpartition(".")
        layer = layers.get(layer_name.removesuffix(_BASE))
        if kind == "weight" and layer_name.endswith(_BASE) and isinstance(layer, LoraLayer):
            value = (value.float() + _update(layer)).to(value.dtype)
        yield name.replace(_BASE, ""), value


def named_adapters(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The adapters' own weights by name, one at a time, sharded ones gathered; none without."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            yield name, _whole(parameter)


def _update(layer: LoraLayer) -> Tensor:
    """scaling · B A in float32, [out, in]."""
    down = _whole(cast(Any, layer.lora_A)[_ADAPTER].weight).float()  # (rank, in)
    up = _whole(cast(Any, layer.lora_B)[_ADAPTER].weight).float()  # (out, rank)
    return float(layer.scaling[_ADAPTER]) * (up @ down)


def _whole(parameter: Tensor) -> Tensor:
    value = parameter.detach()
    return cast(Tensor, cast(Any, value).full_tensor()) if hasattr(value, "full_tensor") else value
