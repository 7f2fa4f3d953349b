"""A policy as a Hugging Face folder, gathered from its shards and with its adapters merged."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig

from mempo.models.lora import named_adapters, named_weights
from mempo.runtime.checkpoint_files import UNFINISHED
from mempo.runtime.disk import writing
from mempo.runtime.run_folder import ADAPTER_FOLDER

_LOG = logging.getLogger(__name__)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class WholeWeights:
    """A policy's weights in main memory: ``merged`` by Hugging Face name, and ``adapters`` by the
    names that ``peft`` has for them. Both are empty where they were not kept."""

    merged: dict[str, Tensor]
    adapters: dict[str, Tensor]


def whole_weights(model: Any, keep: bool) -> WholeWeights:
    """All weights, where ``keep``; every process must call it.

    Elsewhere each is gathered and dropped, so that one process alone holds them all.
    """
    merged = {name: value.cpu() for name, value in named_weights(model) if keep}
    adapters = {name: value.cpu() for name, value in named_adapters(model) if keep}
    return WholeWeights(merged, adapters)


def save_policy(
    model: Any, weights: WholeWeights, folder: Path, tokenizer: Any, *, keep_adapters: bool = True
) -> None:
    """Writes what ``whole_weights`` gave; adapters also by themselves, in ``adapter/`` beside the
    folder, with ``keep_adapters``.

    Each folder gets its name when it is whole: a kill leaves the old one, or none.
    """
    base = model
    if isinstance(model, PeftModel):
        if keep_adapters:
            # peft would read the parameters themselves, which may be shards.
            with _replaced(folder.parent / ADAPTER_FOLDER) as unfinished:
                model.save_pretrained(str(unfinished), state_dict=weights.adapters)
        base = model.get_base_model()
    _drop_contradictions(base)
    with _replaced(folder) as unfinished:
        base.save_pretrained(unfinished, state_dict=weights.merged)
        tokenizer.save_pretrained(unfinished)


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of ``folder`` at the end of the block. Raises
    ``MempoError`` where the disk takes no more."""
    unfinished = folder.with_name(folder.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    with writing(folder):
        try:
            unfinished.mkdir(parents=True)
            yield unfinished
        except Exception:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


def _drop_contradictions(model: Any) -> None:
    """Keeps of a ``generation_config`` that contradicts itself only which tokens begin and end a
    text: transformers reads it, and would not write it.

    The engine takes nothing else from it either.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    try:
        settings.validate(strict=True)
    except ValueError as error:
        kept = {name: getattr(settings, name, None) for name in _TOKENS}
        model.generation_config = cast(Any, GenerationConfig)(**kept)
        _LOG.warning(
            "the model's generation_config contradicts itself, so its sampling settings are left "
            "out of the saved model: %s",
            " ".join(str(error).split()),
        )
