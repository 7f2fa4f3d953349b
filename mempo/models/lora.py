"""LoRA adapters (``peft``): the policy trains low-rank updates beside frozen weights.

The engine and the saved model get merged weights, computed one parameter at a time from the frozen
weight and its adapter. Nothing is ever merged in place, so that base weights stay bitwise as they
were, however often weights are synced. Without its adapters the model is the frozen reference of
the KL term.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from mempo.config import LoraSettings
from mempo.runtime.errors import ConfigError

_ADAPTER = "default"
_BASE = ".base_layer"


def add_adapters(model: Any, settings: LoraSettings) -> PeftModel:
    """The model with fresh adapters on its linear layers, which alone are trained.

    Raises ``ConfigError`` for a name in ``model.lora.target_modules`` that no linear layer has, and
    for an output layer that is tied to the embedding.
    """
    if settings.target_modules != "all-linear":
        _check_targets(model, settings.target_modules)
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


def _check_targets(model: Any, targets: Sequence[str]) -> None:
    """A target is the last part of a layer's name, or its last parts, as ``peft`` reads it."""
    setting = f"model.lora.target_modules=[{','.join(targets)}]"
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    allowed = {n for n, m in layers.items() if not (tied and m is head)}
    choices = ", ".join(sorted({name.rpartition(".")[2] for name in allowed}))
    for target in targets:
        named = [n for n, _ in model.named_modules() if n == target or n.endswith(f".{target}")]
        if any(model.get_submodule(name) is embedding for name in named):
            raise ConfigError(
                f"{setting}: {target} is the embedding, whose adapters would reach neither the "
                f"engine nor the saved model; choose from {choices}, or all-linear"
            )
        if not [name for name in named if name in layers]:
            raise ConfigError(
                f"{setting}: this model has no linear layer {target}; it has {choices}, and "
                "all-linear takes them all"
            )
        if tied and any(model.get_submodule(name) is head for name in named):
            raise ConfigError(
                f"{setting}: {target} is this model's output layer and tied to its embedding, so "
                f"that an adapter would change one of the two alone; choose from {choices}, or "
                "all-linear"
            )


def without_adapters(model: PeftModel) -> AbstractContextManager[None]:
    """Within the block the model is what it was before training."""
    return cast(AbstractContextManager[None], model.disable_adapter())


def named_weights(model: Any, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """The weights by the name that they have in a model's files, one at a time, adapters merged,
    sharded ones gathered.

    ``dtype`` is what they are wanted in: shards in a wider one are cast before they are gathered,
    so that no more is exchanged than is needed. Weights that adapters are merged into, and those
    that are not sharded, come as they are.

    Some models are trained under other names (GPT-NeoX), or in larger pieces (experts in one).
    W + scaling · B A is computed in float32 and given in the dtype of W.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = dict(base.named_modules()) if isinstance(model, PeftModel) else {}
    for name, parameter in base.named_parameters():
        if ".lora_" in name:
            continue
        layer_name, _, kind = name.rpartition(".")
        layer = layers.get(layer_name.removesuffix(_BASE))
        if kind == "weight" and layer_name.endswith(_BASE) and isinstance(layer, LoraLayer):
            value = _whole(parameter)
            value = (value.float() + _update(layer)).to(value.dtype)
        else:
            value = _whole(parameter, dtype)
        yield from revert_weight_conversion(base, {name.replace(_BASE, ""): value}).items()


def named_adapters(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The adapters' own weights by name, one at a time, sharded ones gathered; none without."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            yield name, _whole(parameter)


def _update(layer: LoraLayer) -> Tensor:
    """scaling · B A in float32, [out, in], or [in, out] where the layer holds its weight so
    (GPT-2)."""
    down = _whole(cast(Any, layer.lora_A)[_ADAPTER].weight).float()  # (rank, in)
    up = _whole(cast(Any, layer.lora_B)[_ADAPTER].weight).float()  # (out, rank)
    update = float(layer.scaling[_ADAPTER]) * (up @ down)
    return update.T if isinstance(layer.get_base_layer(), Conv1D) else update


def _whole(parameter: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    value = parameter.detach()
    if not hasattr(value, "full_tensor"):
        return value
    if dtype is not None and dtype.itemsize < value.dtype.itemsize:
        value = value.to(dtype)
    return cast(Tensor, cast(Any, value).full_tensor())
