"""How much one pass holds, by device: tokens of a scoring pass, logits of a chunk."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

CPU_TOKENS = 4096
GPU_TOKENS = 16384
SHARDED_TOKENS = 32768
"""Of a scoring pass. On GPUs many tokens are worth a pass; where its layers are gathered first,
more are: over a link of 50 GB/s a weight in bfloat16 arrives in the time of about 10,000
multiplications by it."""

KEPT_SHARE = 0.1
"""Of a GPU's memory that keys and values of a scoring pass may take."""

CPU_LOGITS = 2**25
GPU_LOGITS = 2**26
"""Logits that exist at one time, in float32. With 150,000 words, half of the latter would read the
output layer's weights for as long as it multiplies by them."""


def logit_elements(device: torch.device) -> int:
    """Logits of a chunk on ``device``."""
    return CPU_LOGITS if device.type == "cpu" else GPU_LOGITS


def scoring_tokens(setting: int | None, model: Any) -> int:
    """``scoring.batch_tokens``, derived from the model and its device where it is ``None``."""
    if setting is not None:
        return setting
    parameter = next(model.parameters())
    device = parameter.device
    if device.type != "cuda":
        return CPU_TOKENS
    memory = torch.cuda.get_device_properties(device).total_memory
    # In float32 at most; passes in bfloat16 take half of it.
    token_bytes = key_value_bytes(model.config, parameter.dtype.itemsize)
    return tokens_within(memory, token_bytes, isinstance(model, FSDPModule))


def tokens_within(memory: int, token_bytes: int, sharded: bool) -> int:
    """Tokens of a pass whose keys and values of ``token_bytes`` a token take at most ``KEPT_SHARE``
    of ``memory``, in thousands (of 1,024) and no fewer than on a CPU."""
    most = SHARDED_TOKENS if sharded else GPU_TOKENS
    fitting = int(KEPT_SHARE * memory / token_bytes) // 1024 * 1024
    return max(CPU_TOKENS, min(most, fitting))


def key_value_bytes(config: Any, element_bytes: int) -> int:
    """Of one token in all layers."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kept * size * element_bytes)
