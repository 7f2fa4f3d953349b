"""Log-probabilities of given tokens under a causal language model.

The output layer runs only at the positions that are asked for. It does so inside the module's own
forward pass (a hook picks the hidden states that reach it), so that sharded and wrapped modules
work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenLogProbs:
    """``logprobs`` and ``entropy`` in nats, [B, T]; positions not asked for hold 0."""

    logprobs: Tensor
    entropy: Tensor | None


def token_logprobs(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> TokenLogProbs:
    """Log-probability of ``ids[b, t]`` given ``ids[b, :t]`` where ``wanted[b, t]`` is true.

    Args:
        model: a Hugging Face causal language model.
        ids: token ids, [B, T].
        attention_mask: 1 on real tokens, 0 on padding (on either side), [B, T].
        wanted: bool, [B, T]; ``wanted[:, 0]`` must be false, since nothing precedes it.
        temperature: the sampling temperature; logits are divided by it.
        with_entropy: also return the entropy of each wanted position's distribution.
    """
    if bool(wanted[:, 0].any()):
        raise ValueError("the first token has no log-probability: nothing precedes it")
    rows, columns = wanted.nonzero(as_tuple=True)  # (N,), (N,)
    nothing_wanted = rows.numel() == 0
    if nothing_wanted:
        # The forward pass still runs, with a gradient of 0: under sharding or DDP every rank must
        # take part in it.
        rows = torch.zeros(1, dtype=torch.long, device=ids.device)
        columns = rows + ids.shape[1] - 1
    with _output_layer_at(model, rows, columns - 1):
        logits = model(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
            use_cache=False,
        ).logits.float()  # (N, V)
    if temperature != 1.0:
        logits = logits / temperature
    normalizer = logits.logsumexp(-1)  # (N,)
    chosen = logits.gather(-1, ids[rows, columns].unsqueeze(-1)).squeeze(-1) - normalizer
    entropy = None
    if with_entropy:
        entropy = normalizer - (logits.softmax(-1) * logits).sum(-1)
    if nothing_wanted:
        nothing = torch.ones_like(chosen, dtype=torch.bool)
        chosen = chosen.masked_fill(nothing, 0.0)
        entropy = None if entropy is None else entropy.masked_fill(nothing, 0.0)
    return TokenLogProbs(
        _placed(chosen, rows, columns, ids.shape),
        None if entropy is None else _placed(entropy, rows, columns, ids.shape),
    )


@contextmanager
def _output_layer_at(model: Any, rows: Tensor, positions: Tensor) -> Iterator[None]:
    """Within the block, the output layer sees the hidden states ``[rows, positions]`` only, and
    the model's logits are [N, V] instead of [B, T, V]."""

    def pick(module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (arguments[0][rows, positions],)

    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def _placed(values: Tensor, rows: Tensor, columns: Tensor, shape: torch.Size) -> Tensor:
    """[N] values at their places in a [B, T] tensor of zeros."""
    return torch.zeros(shape, device=values.device).index_put((rows, columns), values)
