"""Log-probabilities of given tokens under a causal language model.

The output layer runs only at the positions that are asked for, in chunks: no tensor of the size
[tokens, vocabulary] exists beyond one chunk, and the backward pass computes each chunk again. All
of it happens inside the module's own forward pass (the output layer is replaced while it runs), so
that sharded and wrapped modules work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mempo.learning.output_layer import Logits, output_layer_as
from mempo.learning.packed_rows import PackedRows, needs_one_pass, packed_forward
from mempo.learning.pass_sizes import logit_elements
from mempo.learning.shared_prefix import attention_behind_prefix, prefix_cache

Entropy = Literal["none", "measured", "trained"]


@dataclass(frozen=True)
class WantedTokens:
    """Rows of tokens, and which of them are asked for.

    ``ids``: token ids, [B, T]. ``attention_mask``: 1 on real tokens, 0 on padding (on either side),
    [B, T]. ``wanted``: bool, [B, T]; ``wanted[:, 0]`` must be false, since nothing precedes it.
    ``shared``: how many tokens all rows begin with that are computed once for all of them; none of
    them, nor the token after them, may be wanted, and padding must stand on the right.
    ``packed``: rows are laid end to end, so that padding, on the right, is not computed.
    """

    ids: Tensor
    attention_mask: Tensor
    wanted: Tensor
    shared: int = 0
    packed: bool = False


@dataclass(frozen=True)
class Targets:
    """Tokens ``ids`` to be predicted by the hidden states at ``[rows, positions]``; each [N]."""

    rows: Tensor
    positions: Tensor
    ids: Tensor


@dataclass(frozen=True)
class TokenLogProbs:
    """``logprobs`` and ``entropy`` in nats, [B, T]; positions not asked for hold 0."""

    logprobs: Tensor
    entropy: Tensor | None


def token_logprobs(
    model: Any, tokens: WantedTokens, temperature: float = 1.0, entropy: Entropy = "none"
) -> TokenLogProbs:
    """Log-probability of ``ids[b, t]`` given ``ids[b, :t]`` where ``wanted[b, t]`` is true.

    Args:
        model: a Hugging Face causal language model.
        tokens: the rows, and which of their tokens are wanted.
        temperature: the sampling temperature; logits are divided by it.
        entropy: also return the entropy of each wanted position's distribution, with its
            gradient (``trained``) or without (``measured``), which is cheaper.
    """
    ids, shape = tokens.ids, tokens.ids.shape
    layout: PackedRows | None = None
    if tokens.packed or (tokens.shared and needs_one_pass(model)):
        layout = PackedRows.of(tokens.attention_mask, tokens.shared)
    forward = _forward(model, tokens, layout)
    rows, columns = tokens.wanted.nonzero(as_tuple=True)  # (N,), (N,)
    nothing_wanted = rows.numel() == 0
    if nothing_wanted:
        # The forward pass still runs, with a gradient of 0: under sharding or DDP every rank must
        # take part in it.
        rows = torch.zeros(1, dtype=torch.long, device=ids.device)
        columns = rows + shape[1] - 1
    chosen = ids[rows, columns]
    if layout is None:
        targets = Targets(rows, columns - 1 - tokens.shared, chosen)
    else:
        targets = Targets(torch.zeros_like(rows), layout.places(rows, columns - 1), chosen)
    values = statistics_at(model, forward, targets, temperature, entropy)
    if nothing_wanted:
        values = values.masked_fill(torch.ones_like(values, dtype=torch.bool), 0.0)
    logprobs, entropies = values.unbind(-1)
    return TokenLogProbs(
        _placed(logprobs, rows, columns, shape),
        _placed(entropies, rows, columns, shape) if entropy != "none" else None,
    )


def _forward(model: Any, tokens: WantedTokens, layout: PackedRows | None) -> Callable[[], Any]:
    """Runs the model once over all tokens in ``layout``, or over what is not shared; the shared
    tokens are then computed at once. Raises ``ValueError`` for tokens that cannot be asked for."""
    ids, wanted, shared = tokens.ids, tokens.wanted, tokens.shared
    if bool(wanted[:, 0].any()):
        raise ValueError("the first token has no log-probability: nothing precedes it")
    padding = _padding(tokens.attention_mask)
    if layout is None and shared == 0:
        return lambda: model(input_ids=ids, use_cache=False, **padding)
    if padding:
        raise ValueError("rows begin with padding: they share no tokens and cannot be packed")
    if shared and bool(wanted[:, : shared + 1].any()):
        raise ValueError(
            f"{shared} tokens cannot be computed once for all rows: log-probabilities are wanted "
            "that these tokens predict"
        )
    if layout is not None:
        return packed_forward(model, ids, layout)
    cache = prefix_cache(model, ids[:1, :shared], len(ids))

    def behind_prefix() -> Any:
        with attention_behind_prefix(model):
            return model(input_ids=ids[:, shared:], past_key_values=cache, use_cache=True)

    return behind_prefix


def _padding(attention_mask: Tensor) -> dict[str, Tensor]:
    """What the model must be told of padding.

    Nothing where it stands behind the tokens only: causal attention never looks there, and without
    a mask its kernels skip the pairs that causality forbids, and flash kernels can serve.
    """
    if bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all()):
        return {}
    return {
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
    }


def statistics_at(
    model: Any,
    forward: Callable[[], Any],
    targets: Targets,
    temperature: float = 1.0,
    entropy: Entropy = "none",
) -> Tensor:
    """Log-probability and entropy of ``targets``, [N, 2] in float32.

    ``forward`` runs the model once; its output layer sees the hidden states of ``targets`` only.
    The entropy is 0 when not asked for.
    """

    computed: list[Tensor] = []

    def statistics(head: Logits, hidden: Tensor) -> Tensor:
        states = hidden[targets.rows, targets.positions]
        computed.append(_in_chunks(head, states, targets.ids, temperature, entropy))
        return computed[-1]

    with output_layer_as(model, statistics):
        values: Tensor = forward().logits
    # Most models hand on the same tensor, so that nothing is compared.
    if values is not computed[-1] and not torch.equal(
        values.nan_to_num(), computed[-1].nan_to_num()
    ):
        raise NotImplementedError(
            f"{type(model).__name__} changes its logits after the output layer in a way that is "
            "not known here, so its probabilities cannot be computed: use another model"
        )
    return values


def _in_chunks(
    head: Logits,
    hidden: Tensor,
    targets: Tensor,
    temperature: float,
    entropy: Entropy,
) -> Tensor:
    """Log-probability and entropy of every target, [N, 2] in float32, a chunk of ``hidden`` [N, H]
    at a time."""

    def chunk_statistics(states: Tensor, chosen: Tensor) -> Tensor:
        logits = head(states)  # (n, V), float32
        if temperature != 1.0:
            logits = logits / temperature
        normalizer = logits.logsumexp(-1)
        logprobs = logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - normalizer
        entropies = torch.zeros_like(logprobs)
        if entropy == "trained":
            entropies = _entropy(logits, normalizer)
        elif entropy == "measured":
            with torch.no_grad():
                entropies = _entropy(logits, normalizer)
        return torch.stack([logprobs, entropies], dim=-1)

    with torch.no_grad():
        vocabulary = head(hidden[:1]).shape[-1]
    size = max(1, logit_elements(hidden.device) // vocabulary)
    if len(targets) <= size:
        return chunk_statistics(hidden, targets)
    parts: list[Tensor] = []
    for states, chosen in zip(torch.split(hidden, size), torch.split(targets, size), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(chunk_statistics, states, chosen, use_reentrant=False))
        else:
            parts.append(chunk_statistics(states, chosen))
    return torch.cat(parts)


def _entropy(logits: Tensor, normalizer: Tensor) -> Tensor:
    return normalizer - ((logits - normalizer.unsqueeze(-1)).exp() * logits).sum(-1)


def _placed(values: Tensor, rows: Tensor, columns: Tensor, shape: torch.Size) -> Tensor:
    """[N] values at their places in a [B, T] tensor of zeros."""
    return torch.zeros(shape, device=values.device).index_put((rows, columns), values)
