"""The policy loss as pure functions on tensors (specification section 8).

Shapes: every tensor of one call has the same shape, [N] (the tokens of a micro-batch laid end to
end) or [B, T]; all mathematics is elementwise. A token's share in the loss is its weight, computed
beforehand from the whole optimizer step (``aggregation_weights``), so that

    L = Σ_t weight_t · mask_t · ( loss_t + kl_coefficient · KL_t - entropy_coefficient · H_t )

and the sum over micro-batches and ranks does not depend on how rows are split or padded. Ranks add
their gradients: where a strategy averages over ranks, the caller multiplies by the world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mempo.config import LossConfig


class NonFiniteTokenError(FloatingPointError):
    """A NaN or an infinity at a policy token.

    ``positions`` are indices into the flattened tensors of the call, so that the caller can name
    the trajectory; ``tensor`` says which of the inputs holds it.
    """

    def __init__(self, tensor: str, positions: list[int]) -> None:
        self.tensor = tensor
        self.positions = positions
        more = f" and {len(positions) - 8} more" if len(positions) > 8 else ""
        super().__init__(
            f"{tensor} is NaN or infinite at policy token(s) {positions[:8]}{more} of the "
            "micro-batch: the step was not taken"
        )


def aggregation_weights(
    policy_tokens: Sequence[int],
    aggregation: Literal["token_mean", "trajectory_mean"],
    equal_trajectories: bool = False,
) -> list[float]:
    """The weight of each policy token of each trajectory in the loss.

    policy_tokens: the number of policy tokens of every trajectory of the optimizer step, over all
    micro-batches and ranks; in memory-context rollouts the sum over the trajectory's sequences.
    With n_i of them in trajectory i of M:

    - ``token_mean``: 1 / Σ n, the same for every token.
    - ``trajectory_mean``: 1 / (n_i · M), so that every trajectory has the share 1 / M.

    ``equal_trajectories`` is for memory-context rollouts, where a trajectory's weight must not grow
    with its number of rounds (specification section 4): under ``token_mean`` it gives each
    trajectory the share that one has on average, which is 1 / M again.

    The denominators count every policy token and every trajectory of the step, those of constant
    groups (advantage 0) and trajectories without a policy token too. A trajectory without policy
    tokens has weight 0.0. Raises ``ValueError`` for a negative number.
    """
    if any(tokens < 0 for tokens in policy_tokens):
        raise ValueError(f"numbers of policy tokens must not be negative: {list(policy_tokens)}")
    if aggregation not in ("token_mean", "trajectory_mean"):
        raise ValueError(f"loss.aggregation={aggregation}: use token_mean or trajectory_mean")
    if aggregation == "token_mean" and not equal_trajectories:
        total = sum(policy_tokens)
        return [1.0 / total if tokens else 0.0 for tokens in policy_tokens]
    count = len(policy_tokens)
    return [1.0 / (tokens * count) if tokens else 0.0 for tokens in policy_tokens]


@dataclass(frozen=True)
class LossInputs:
    """The tokens of one micro-batch; all tensors have one shape.

    ``logprobs``: log π of the sampled tokens, with gradient. ``old_logprobs``: log π_old, ``None``
    where the policy has not moved since the epoch began (the ratio is 1 then and carries the
    gradient). ``mask``: 1 or True on policy tokens. ``weights``: see ``aggregation_weights``.
    ``ref_logprobs``: log π_ref of the frozen reference. ``entropy``: H, with gradient.
    ``engine_logprobs``: what the sampling engine reported.
    """

    logprobs: Tensor
    old_logprobs: Tensor | None
    advantages: Tensor
    mask: Tensor
    weights: Tensor
    ref_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    engine_logprobs: Tensor | None = None


def policy_loss(inputs: LossInputs, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO with clipping and dual clip, with optional KL, entropy and importance terms.

    With r = exp(clamp(log π - log π_old, ±log_ratio_clamp)) the token loss is
    ``-min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A)``, for A < 0 at most ``-dual_clip·A``. With
    ``importance_cap`` it is multiplied by ``min(π_old / π_engine, cap)``, without gradient.

    What stands at masked positions changes neither value nor gradient, whatever it is.

    Returns the loss, a scalar, and metrics without gradient, scalars over the call's policy
    tokens. Keys ending in ``_max`` combine by maximum, all others by addition over micro-batches
    and ranks: ``tokens``, ``policy_loss``, ``ratio_sum``, ``clipped_sum``, ``dual_clipped_sum``
    (numbers of tokens); where the inputs are given ``kl_sum``, ``entropy_sum``, ``mismatch_sum``
    and ``mismatch_max`` (of |log π_engine - log π_old|), ``importance_sum``. A mean is a sum
    divided by ``tokens``.

    Raises ``NonFiniteTokenError`` (a ``FloatingPointError``) for a NaN or an infinity at a policy
    token of any input, ``ValueError`` for shapes that differ or a coefficient whose input is
    missing.
    """
    _require_inputs(inputs, config)
    tokens = _policy_tokens(inputs)
    token_loss, metrics = _clipped_loss(tokens, config)
    if tokens.engine is not None:
        token_loss = _importance_weighted(token_loss, tokens, tokens.engine, config, metrics)
    loss = (tokens.weight * token_loss).sum()
    metrics["policy_loss"] = loss.detach()
    if tokens.reference is not None:
        kl = kl_divergence(
            tokens.logp, tokens.reference, config.kl_estimator, config.log_ratio_clamp
        )
        metrics["kl_sum"] = kl.detach().sum()
        if config.kl_coefficient > 0:
            loss = loss + config.kl_coefficient * (tokens.weight * kl).sum()
    if tokens.entropy is not None:
        metrics["entropy_sum"] = tokens.entropy.detach().sum()
        if config.entropy_coefficient > 0:
            loss = loss - config.entropy_coefficient * (tokens.weight * tokens.entropy).sum()
    return loss, metrics


def kl_divergence(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    estimator: Literal["k1", "k2", "k3"],
    log_ratio_clamp: float = 20.0,
) -> Tensor:
    """Estimates of KL(π ‖ π_ref) at each sampled token, elementwise, with gradient in log π.

    With d = log π_ref - log π: ``k1`` = -d, ``k2`` = d² / 2, ``k3`` = exp(d) - d - 1 (d clamped, so
    that exp stays finite). Their derivatives in log π are 1, -d and 1 - exp(d).
    """
    d = ref_logprobs - logprobs
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return 0.5 * d.square()
    if estimator == "k3":
        d = d.clamp(-log_ratio_clamp, log_ratio_clamp)
        return d.exp() - d - 1.0
    raise ValueError(f"loss.kl_estimator={estimator}: use k1, k2 or k3")


@dataclass(frozen=True)
class _PolicyTokens:
    """Checked inputs: in at least float32, 0 where ``keep`` is false. Only ``logp`` and ``entropy``
    carry a gradient."""

    logp: Tensor
    old: Tensor
    advantage: Tensor
    weight: Tensor
    keep: Tensor
    engine: Tensor | None
    reference: Tensor | None
    entropy: Tensor | None


def _policy_tokens(inputs: LossInputs) -> _PolicyTokens:
    keep = inputs.mask.bool()

    def masked(name: str, values: Tensor) -> Tensor:
        return _masked(name, values, keep, inputs.logprobs)

    def constant(name: str, values: Tensor | None) -> Tensor | None:
        return None if values is None else masked(name, values).detach()

    logp = masked("logprobs", inputs.logprobs)
    old = constant("old_logprobs", inputs.old_logprobs)
    return _PolicyTokens(
        logp=logp,
        old=logp.detach() if old is None else old,
        advantage=masked("advantages", inputs.advantages).detach(),
        weight=masked("weights", inputs.weights).detach(),
        keep=keep,
        engine=constant("engine_logprobs", inputs.engine_logprobs),
        reference=constant("ref_logprobs", inputs.ref_logprobs),
        entropy=None if inputs.entropy is None else masked("entropy", inputs.entropy),
    )


def _clipped_loss(tokens: _PolicyTokens, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The token loss, 0 at masked positions (their advantage is 0), and its metrics."""
    logp, old, advantage, keep = tokens.logp, tokens.old, tokens.advantage, tokens.keep
    ratio = (logp - old).clamp(-config.log_ratio_clamp, config.log_ratio_clamp).exp()
    plain = -ratio * advantage
    clipped = -ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantage
    pessimistic = torch.maximum(plain, clipped)
    ceiling = -config.dual_clip * advantage
    token_loss = torch.where(advantage < 0, torch.minimum(pessimistic, ceiling), pessimistic)
    metrics = {
        "tokens": keep.sum().to(logp.dtype),
        "ratio_sum": _sum(ratio.detach(), keep),
        "clipped_sum": _sum((clipped > plain).to(logp.dtype), keep),
        "dual_clipped_sum": _sum(((advantage < 0) & (pessimistic > ceiling)).to(logp.dtype), keep),
    }
    return token_loss, metrics


def _importance_weighted(
    token_loss: Tensor,
    tokens: _PolicyTokens,
    engine: Tensor,
    config: LossConfig,
    metrics: dict[str, Tensor],
) -> Tensor:
    """The token loss times its importance weight, where there is a cap. Adds to ``metrics`` how far
    the engine is from the old policy, and the weights."""
    mismatch = (engine - tokens.old).abs()
    metrics["mismatch_sum"] = mismatch.sum()
    metrics["mismatch_max"] = mismatch.max() if mismatch.numel() else mismatch.sum()
    if config.importance_cap is None:
        return token_loss
    clamp = config.log_ratio_clamp
    ratio = (tokens.old - engine).clamp(-clamp, clamp).exp().clamp(max=config.importance_cap)
    metrics["importance_sum"] = _sum(ratio, tokens.keep)
    return ratio * token_loss


def _sum(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, values, torch.zeros_like(values)).sum()


def _masked(name: str, values: Tensor, keep: Tensor, like: Tensor) -> Tensor:
    """The values in at least float32, 0 where the mask is 0, checked where it is 1.

    ``torch.where`` comes before any arithmetic: 0 * NaN would be NaN, in the gradient too.
    """
    if values.shape != like.shape or keep.shape != like.shape:
        raise ValueError(
            f"{name} {tuple(values.shape)}, mask {tuple(keep.shape)} and logprobs "
            f"{tuple(like.shape)} must have one shape"
        )
    bad = keep & ~torch.isfinite(values)
    if bool(bad.any()):
        raise NonFiniteTokenError(name, torch.nonzero(bad.reshape(-1)).flatten().tolist())
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return torch.where(keep, wide, torch.zeros_like(wide))


def _require_inputs(inputs: LossInputs, config: LossConfig) -> None:
    if config.kl_coefficient > 0 and inputs.ref_logprobs is None:
        raise ValueError("loss.kl_coefficient is positive: the loss needs ref_logprobs")
    if config.entropy_coefficient > 0 and inputs.entropy is None:
        raise ValueError("loss.entropy_coefficient is positive: the loss needs entropy")
    if config.importance_cap is not None and inputs.engine_logprobs is None:
        raise ValueError("loss.importance_cap is set: the loss needs engine_logprobs")
