"""The model before any training, as a folder that ``transformers`` and vLLM open.

The tiny model's words are those of the demonstrations, so its tokenizer is trained on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from mempo.agent.prompts import load_template, template_text
from mempo.agent.tools import protocol_of
from mempo.config import DEFAULT_TOOLS, Config, SftConfig, writes_memory
from mempo.demonstrations.world import configured_demonstrations
from mempo.models.content import model_content
from mempo.models.families import check_family
from mempo.models.folder import check_model_folder
from mempo.models.smollm2 import load_packaged_smollm2
from mempo.models.template_file import read_chat_template
from mempo.models.tiny import build_tiny_model, train_tokenizer
from mempo.runtime.cache import cached_folder, file_digest

_TRAINING: Final = (
    *("steps", "batch_size", "micro_batch_tokens", "learning_rate", "warmup_steps"),
    *("weight_decay", "max_grad_norm"),
)
"""Settings of the supervised training itself."""

_FROM_FILES: Final = (
    *("min_reward", "may_break", "skip_bad_rows", "max_tokens", "heldout_share", "seed"),
)
"""Settings that say which texts the files of ``sft.path`` give, in which order."""

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
    key = {**demonstrations_key(config), "architecture": model.architecture}
    return str(
        cached_folder(config.cache_dir, "tiny", key, lambda folder: _write_tiny(config, folder))
    )


def demonstrations_key(config: Config) -> dict[str, Any]:
    """All that decides which demonstrations are made and how they read, by content: a template is
    its text, whatever its file is called."""
    world = config.data.world
    shown = ("top_k", "title_weight", "passage_chars", "page_chars", "short_chars")
    drawn = ("seed", "worlds", "drop_probability", "memory_form")
    shares = ("trajectory_share", "round_share", "answer_share")
    return {
        "sft": _settings(config.sft, (*drawn, *shares)),
        "world": [world.passages, world.min_hops, world.max_hops, world.page_fact_share],
        "objectives": config.sft.objectives or config.data.objectives,
        "retriever": {name: getattr(config.retriever, name) for name in shown},
        "scoring": [config.scoring.filler, config.scoring.answer_template],
        "prompt": _prompt_text(config),
        "system": config.model.system_prompt,
        **_tools_key(config),
        **({} if writes_memory(config.rollout.context) else {"memory": False}),
    }


def _prompt_text(config: Config) -> str:
    memory = writes_memory(config.rollout.context)
    return template_text(config.model.prompt_template, config.tools, memory)


def supervised_key(config: Config, base: str) -> dict[str, Any]:
    """All that decides what the supervised start from the model ``base`` becomes."""
    return {
        **start_key(config),
        "base": model_content(base, Path(config.cache_dir) / "digests"),
    }


def start_key(config: Config) -> dict[str, Any]:
    """What decides, besides the model, what a supervised start becomes: its texts, files by their
    content, and how they are trained on; not what is computed again, by which attention, and
    adapters that come later."""
    template, adapters = config.model.chat_template, config.sft.train == "adapters"
    if config.sft.source == "file":
        texts = _files_key(config)
    else:
        texts = {**demonstrations_key(config), "demonstrations": config.sft.demonstrations}
    return {
        **texts,
        "training": _settings(config.sft, _TRAINING),
        "dtype": config.model.dtype,
        "chat_template": None if template is None else read_chat_template(template),
        "observation": config.rollout.max_observation_tokens,
        **({"lora": config.model.lora} if adapters else {}),
    }


def _files_key(config: Config) -> dict[str, Any]:
    """What decides which texts the files of ``sft.path`` give, and how they read."""
    return {
        "files": [file_digest(Path(path)) for path in config.sft.paths],
        "sft": _settings(config.sft, _FROM_FILES),
        "context": config.sft.context or config.rollout.context,
        "memory_context": config.rollout.memory_context,
        "max_model_len": config.engine.max_model_len,
        "short_chars": config.retriever.short_chars,
        "prompt": _prompt_text(config),
        "system": config.model.system_prompt,
        **_tools_key(config),
        **({} if writes_memory(config.rollout.context) else {"memory": False}),
    }


def _tools_key(config: Config) -> dict[str, Any]:
    """What decides, besides the prompt, how a text with tools of one's own is read."""
    read = [(tool.tag, tool.short_chars) for tool in config.tools]
    usual = [(tool.tag, tool.short_chars) for tool in DEFAULT_TOOLS]
    return {} if read == usual else {"tools": read}


def _settings(sft: SftConfig, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(sft, name) for name in names}


def _write_smollm2(folder: Path) -> None:
    model, tokenizer = load_packaged_smollm2()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_tiny(config: Config, folder: Path) -> None:
    architecture = config.model.architecture
    assert architecture is not None
    tokenizer = train_tokenizer(
        _world_texts(config), architecture.vocab_size, protocol_of(config.tools).tags
    )
    model = build_tiny_model(architecture, tokenizer, config.sft.seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _world_texts(config: Config) -> Iterable[str]:
    """What the tiny tokenizer is trained on: demonstrations, so no held-out name is seen."""
    prompt = load_template(config.model.prompt_template, config.tools)
    memory = writes_memory(config.rollout.context)
    if config.model.system_prompt is not None:
        yield from [config.model.system_prompt] * _SYSTEM_PROMPT_REPEATS
    for demonstration in configured_demonstrations(config, _TOKENIZER_DEMONSTRATIONS):
        yield prompt.render(question=demonstration.question, memory=memory)
        for turn in demonstration.turns:
            yield turn.given + turn.text
