"""The policy and its tokenizer from a folder that ``transformers`` opens, or a hub name."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from mempo.config import Config
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.models.hub import check_hub
from mempo.models.sharded import can_start_empty, empty_policy
from mempo.models.template_file import read_chat_template
from mempo.runtime.errors import ConfigError


def load_tokenizer(folder: str, chat_template: str | None = None) -> Any:
    """The tokenizer of a model folder or hub name, with the template in the file
    ``chat_template`` (``model.chat_template``) in place of its own, which is saved with it.

    Raises ``ConfigError`` when there is no tokenizer or no such template.
    """
    template = None if chat_template is None else read_chat_template(chat_template)
    check_hub(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except OSError as error:
        raise ConfigError(
            f"model {folder}: its tokenizer cannot be read ({str(error).splitlines()[0]}); a hub "
            "name needs the network once: give a folder with the model in model.path, or "
            "evaluation.model_path for evaluate.py"
        ) from error
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def load_policy(folder: str, config: Config, *, frozen: bool = False) -> Any:
    """The policy as a Hugging Face causal language model.

    Weights that are trained are held in float32, so that small updates are not lost in them;
    ``model.dtype`` is the precision of the passes, and of ``frozen`` weights. Under
    ``trainer=fsdp2`` it has no weights yet where that is possible (``mempo/models/sharded.py``).
    Dropout is off: the policy that is trained is the one that the engine samples from.
    """
    lower = frozen and config.model.dtype == "bfloat16"
    dtype = torch.bfloat16 if lower else torch.float32
    configuration = AutoConfig.from_pretrained(folder)
    _turn_dropout_off(configuration)
    attention = attention_for(config.model.attention, configuration)
    if config.trainer.strategy == "fsdp2" and can_start_empty(folder):
        model = empty_policy(configuration, dtype, attention)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            folder, config=configuration, dtype=dtype, attn_implementation=attention
        )
    enable_gradient_checkpointing(model, config.model.gradient_checkpointing)
    return model


def attention_for(setting: str, configuration: Any) -> str:
    """``auto`` is PyTorch's scaled-dot-product attention, which picks a flash kernel on a GPU; for
    models that cap their attention's scores (Gemma 2), which it leaves out, ``eager``."""
    capped = getattr(configuration, "attn_logit_softcapping", None) is not None
    if setting == "auto":
        return "eager" if capped else "sdpa"
    return setting


def _turn_dropout_off(configuration: Any) -> None:
    for name, value in configuration.to_dict().items():
        if "drop" in name and isinstance(value, float) and value > 0:
            setattr(configuration, name, 0.0)
