"""Which models can be trained, told by their ``config.json`` before anything is loaded.

docs/models.md has the families that were tried, and ``tests/models/test_families.py`` tries them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mempo.config import Config
from mempo.models.hub import read_configuration
from mempo.runtime.errors import ConfigError

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_RECURRENT = (
    *("mamba", "jamba", "bamba", "zamba", "rwkv", "recurrent", "hybrid"),
    *("falcon_h1", "nemotron_h", "lfm2", "qwen3_next"),
)
"""In names of models."""
_RECURRENT_LAYERS = ("mamba", "linear", "recurrent", "conv")
_PARTS = ("vision_config", "audio_config", "text_config", "thinker_config")


def check_family(model: str, config: Config) -> None:
    """Raises ``ConfigError`` that names the model and the reason when a model folder or hub name
    is of a family that cannot be trained, or not with these settings."""
    found = read_configuration(model)
    reason = next(_reasons(found, config), None)
    if reason is not None:
        name = (found.get("architectures") or [found.get("model_type", "a model")])[0]
        raise ConfigError(f"model {model} ({name}): {reason}")


def _reasons(found: Mapping[str, Any], config: Config) -> Iterator[str]:
    architectures = [str(name) for name in found.get("architectures") or []]
    if found.get("is_encoder_decoder"):
        yield "an encoder and a decoder are no causal language model: choose another model"
    if any(found.get(part) for part in _PARTS):
        yield (
            "it reads more than text, and its names in transformers and in vLLM differ: save its "
            "text part as a model of its own, or choose a model of text"
        )
    if architectures and not any(_is_causal(name) for name in architectures):
        yield "it has no output layer for the next token: choose a causal language model"
    if found.get("quantization_config"):
        yield (
            "its weights are quantized and cannot be trained: take the model's unquantized weights"
        )
    if any((found.get(name) or 0) > 1 for name in _EXPERTS):
        yield (
            "its layers choose among experts, and vLLM's experts do not take new weights as other "
            "layers do: the engine would go on with wrong ones; choose a model without experts"
        )
    if _is_recurrent(found) and _on_gpu(config):
        yield (
            "it has recurrent layers, whose parameters vLLM loses on GPUs when it takes new "
            "weights or sleeps: choose a model of attention alone, or trainer.accelerator=cpu"
        )
    yield from _attention_reasons(found, config)


def _is_recurrent(found: Mapping[str, Any]) -> bool:
    name = str(found.get("model_type", "")).lower()
    kinds = [found.get(key) for key in ("layer_types", "layers_block_type", "block_types")]
    layers = {str(kind) for one in kinds if isinstance(one, list) for kind in one}
    return any(part in name for part in _RECURRENT) or any(
        part in kind for kind in layers for part in _RECURRENT_LAYERS
    )


def _on_gpu(config: Config) -> bool:
    if config.trainer.accelerator == "cpu":
        return False
    import torch  # only here: most models are checked without seconds of imports

    return config.trainer.accelerator == "gpu" or torch.cuda.is_available()


def _is_causal(architecture: str) -> bool:
    return architecture.endswith(("ForCausalLM", "LMHeadModel"))


def _attention_reasons(found: Mapping[str, Any], config: Config) -> Iterator[str]:
    if found.get("attn_logit_softcapping") and config.model.attention == "sdpa":
        yield (
            "model.attention=sdpa leaves out the soft cap of its attention: take "
            "model.attention=auto"
        )
    window = found.get("sliding_window")
    if found.get("model_type") == "cohere2" and window and _has_window(found):
        length = config.engine.max_model_len or found.get("max_position_embeddings", window + 1)
        if length > window:
            yield (
                f"behind its window of {window} tokens vLLM's Cohere 2 sees one token more than "
                f"that of transformers, so probabilities would differ: set "
                f"engine.max_model_len={window}"
            )


def _has_window(found: Mapping[str, Any]) -> bool:
    kinds = found.get("layer_types")
    return kinds is None or "sliding_attention" in kinds
