"""Sizes of a model of any family, read from its ``config.json``: no weights are loaded.

transformers builds the model on torch's meta device, where nothing is stored, so the numbers of
parameters are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mempo.command.memory_estimate import ParameterCount, adapter_parameters, count_parameters
from mempo.config import ArchitectureConfig, Config
from mempo.runtime.errors import ConfigError


@dataclass(frozen=True)
class ModelSizes:
    """``adapters`` are the trained parameters under ``model.lora``, 0 without."""

    architecture: ArchitectureConfig
    parameters: ParameterCount
    adapters: int


def model_sizes(config: Config) -> ModelSizes:
    """From ``model.architecture`` where it is given, without torch, else from ``model.path``.

    Raises ``ConfigError`` when neither tells them.
    """
    architecture, lora = config.model.architecture, config.model.lora
    if architecture is not None:
        adapters = 0 if lora is None else adapter_parameters(architecture, lora.rank)
        return ModelSizes(architecture, count_parameters(architecture), adapters)
    if config.model.path is None:
        raise ConfigError(
            "model.architecture and model.path are null, and a dry run reads the sizes from one of "
            "them: choose a model of conf/model/, or give model.path"
        )
    return _read(config, config.model.path)


def _read(config: Config, path: str) -> ModelSizes:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from mempo.models.families import check_family
    from mempo.models.lora import add_adapters

    check_family(path, config)
    build: Any = AutoModelForCausalLM
    try:
        configuration = AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model = build.from_config(configuration)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"model.path={path}: its sizes cannot be read ({reason}): give model.architecture (see "
            "conf/model/tiny.yaml)"
        ) from None
    architecture, parameters = _architecture(model), _count(model)
    adapters = 0
    if config.model.lora is not None:
        with torch.device("meta"):
            adapted = add_adapters(model, config.model.lora)
        adapters = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    return ModelSizes(architecture, parameters, adapters)


def _count(model: Any) -> ParameterCount:
    """Where layers differ ``layer`` is their mean, and what is neither embedding, layer nor head
    (embeddings of positions) counts with the final norm."""
    from mempo.models.sharded import decoder_layers

    layers = [_parameters(layer) for layer in decoder_layers(model)]
    embedding = _parameters(model.get_input_embeddings())
    head = _parameters(model.get_output_embeddings())
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        head = 0
    mean = sum(layers) // len(layers)
    rest = _parameters(model) - embedding - head - mean * len(layers)
    return ParameterCount(embedding, mean, len(layers), rest, head)


def _parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _architecture(model: Any) -> ArchitectureConfig:
    """What memory is estimated from, whatever a family calls it."""
    found = model.config
    heads = int(found.num_attention_heads)
    inner = (getattr(found, name, None) for name in ("intermediate_size", "n_inner"))
    return ArchitectureConfig(
        hidden_size=int(found.hidden_size),
        intermediate_size=int(next((size for size in inner if size), 4 * found.hidden_size)),
        num_hidden_layers=int(found.num_hidden_layers),
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(found, "num_key_value_heads", None) or heads),
        vocab_size=int(found.vocab_size),
        max_position_embeddings=int(getattr(found, "max_position_embeddings", 2048)),
        tie_word_embeddings=bool(found.tie_word_embeddings),
        attention_bias=False,
    )
