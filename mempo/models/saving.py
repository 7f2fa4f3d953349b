"""A policy as a Hugging Face folder, gathered from its shards and with its adapters merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import Tensor

from mempo.models.lora import named_weights
from mempo.runtime.run_folder import ADAPTER_FOLDER


def whole_weights(model: Any, keep: bool) -> dict[str, Tensor]:
    """All weights by Hugging Face name in main memory, where ``keep``; every process must call it.

    Elsewhere each is gathered and dropped, so that one process alone holds them all.
    """
    weights = ((name, value) for name, value in named_weights(model))
    return {name: value.cpu() for name, value in weights if keep}


def save_policy(model: Any, weights: dict[str, Tensor], folder: Path, tokenizer: Any) -> None:
    """Writes what ``whole_weights`` gave; adapters also by themselves, in ``adapter/``."""
    base = model
    if isinstance(model, PeftModel):
        model.save_pretrained(str(folder.parent / ADAPTER_FOLDER))
        base = model.get_base_model()
    base.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
