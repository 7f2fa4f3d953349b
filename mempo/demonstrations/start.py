"""The model before any training, as a folder that ``transformers`` and vLLM open.

The tiny model's words are those of the demonstrations, so its tokenizer is trained on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from mempo.agent.prompts import load_template
from mempo.config import Config, ModelConfig
from mempo.demonstrations.world import generate_demonstrations
from mempo.models.families import check_family
from mempo.models.folder import check_model_folder
from mempo.models.smollm2 import load_packaged_smollm2
from mempo.models.tiny import build_tiny_model, train_tokenizer
from mempo.runtime.cache import cached_folder

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
        check_family(model.path, config)
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
    if config.model.system_prompt is not None:
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
