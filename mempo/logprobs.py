"""Log-probabilities of given tokens under a causal language model.

The output layer runs only at the positions that are asked for, through the module's own forward
(``logits_to_keep``), so that sharded and wrapped modules work.
"""

from __future__ import annotations

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
    positions = wanted.any(dim=0).nonzero().squeeze(-1)  # (K,)
    logprobs = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)  # (B, T)
    entropy = torch.zeros_like(logprobs) if with_entropy else None
    if positions.numel() == 0:
        # The forward pass still runs, with a gradient of 0: under sharding or DDP every rank must
        # take part in it.
        positions = torch.tensor([ids.shape[1] - 1], device=ids.device)
    logits = model(
        input_ids=ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=positions - 1,
        use_cache=False,
    ).logits.float()  # (B, K, V)
    if temperature != 1.0:
        logits = logits / temperature
    normalizer = logits.logsumexp(-1)  # (B, K)
    chosen = logits.gather(-1, ids[:, positions].unsqueeze(-1)).squeeze(-1) - normalizer
    keep = wanted[:, positions]
    logprobs = logprobs.index_copy(1, positions, chosen.masked_fill(~keep, 0.0))
    if entropy is not None:
        mean_logit = (logits.softmax(-1) * logits).sum(-1)
        entropy = entropy.index_copy(
            1, positions, (normalizer - mean_logit).masked_fill(~keep, 0.0)
        )
    return TokenLogProbs(logprobs, entropy)
