"""The policy's start: as a folder that ``transformers`` and vLLM open."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mempo.cache import cached_folder
from mempo.config import Config, ConfigError, ModelConfig
from mempo.data.demonstrations import generate_demonstrations
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.models.sharded import can_start_empty, empty_policy
from mempo.models.smollm2 import load_packaged_smollm2
from mempo.models.tiny import build_tiny_model, train_tokenizer
from mempo.preflight import check_model_folder
from mempo.prompts import load_template

_TOKENIZER_DEMONSTRATIONS = 2000
_SYSTEM_PROMPT_REPEATS = 10


def start_folder(config: Config) -> str:
    """The folder or hub name of the model before any training.

    The tiny model and the packaged one are made once and kept in the cache.
    """
    model = config.model
    if model.source == "pretrained":
        assert model.path is not None
        check_model_folder(model.path, "model.path")
        return model.path
    if model.source == "smollm2_package":
        return str(cached_folder(config.cache_dir, "smollm2", {}, _write_smollm2))
    key = {
        "model": trained_settings(model),
        "data": config.data.world,
        "objectives": config.data.objectives,
        "sft": config.sft.seed,
    }
    return str(
        cached_folder(config.cache_dir, "tiny", key, lambda folder: _write_tiny(config, folder))
    )


def trained_settings(model: ModelConfig) -> ModelConfig:
    """``model`` without what makes no difference to its start: what is computed again, by which
    attention, and adapters, which come later."""
    return dataclasses.replace(model, lora=None, gradient_checkpointing=False, attention="auto")


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of a model folder or hub name. Raises ``ConfigError`` when there is none."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except OSError as error:
        raise ConfigError(
            f"model {folder}: its tokenizer cannot be read ({str(error).splitlines()[0]}); a hub "
            "name needs the network once: give a folder with the model in model.path, or "
            "evaluation.model_path for evaluate.py"
        ) from error


def load_policy(folder: str, config: Config, *, frozen: bool = False) -> Any:
    """The policy as a Hugging Face causal language model.

    Weights that are trained are held in float32, so that small updates are not lost in them;
    ``model.dtype`` is the precision of the passes, and of ``frozen`` weights. Under
    ``trainer=fsdp2`` it has no weights yet where that is possible (``mempo/models/sharded.py``).
    """
    lower = frozen and config.model.dtype == "bfloat16"
    dtype = torch.bfloat16 if lower else torch.float32
    attention = attention_for(config.model.attention)
    if config.trainer.strategy == "fsdp2" and can_start_empty(folder):
        model = empty_policy(folder, dtype, attention)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention
        )
    enable_gradient_checkpointing(model, config.model.gradient_checkpointing)
    return model


def attention_for(setting: str) -> str:
    """``auto`` is PyTorch's scaled-dot-product attention, which picks a flash kernel on a GPU."""
    return "sdpa" if setting == "auto" else setting


def _write_smollm2(folder: Path) -> None:
    model, tokenizer = load_packaged_smollm2()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_tiny(config: Config, folder: Path) -> None:
    architecture = config.model.architecture
    assert architecture is not None
    tokenizer = train_tokenizer(_world_texts(config), architecture.vocab_size)
    model = build_tiny_model(architecture, tokenizer, config.sft.seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _world_texts(config: Config) -> Iterable[str]:
    """What the tiny tokenizer is trained on: demonstrations, so no held-out name is seen."""
    prompt = load_template(config.model.prompt_template)
    yield from [config.model.system_prompt] * _SYSTEM_PROMPT_REPEATS
    for demonstration in generate_demonstrations(
        config.sft,
        config.data.world,
        config.retriever,
        config.data.objectives,
        _TOKENIZER_DEMONSTRATIONS,
        config.sft.seed,
        scoring=config.scoring,
    ):
        yield prompt.render(question=demonstration.question)
        for turn in demonstration.turns:
            yield turn.given + turn.text
