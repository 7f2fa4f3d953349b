"""From log-probabilities of the gold answer to a round's memory reward (specification section 6).

What a memory is compared with, its baseline, is the history (P_full) or, with
``scoring.baseline=previous``, the memory before it. The difference is one of P, or, with
``scoring.reward=log_probability``, of log P, which is never computed as the logarithm of a P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mempo.config import ScoringConfig
from mempo.learning.scored_rows import ScoredText
from mempo.trajectory import Round, Trajectory


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of a row's scored text, [len(text)]."""

    text: ScoredText
    logp: Tensor


def answer_probability(logp: Tensor, mask: Tensor, threshold: float | None, empty: str) -> Tensor:
    """The geometric-mean probability of the kept answer tokens.

    P = exp(Σ kept ℓ / (number kept + 1e-8)), paper equation 5 and specification section 6.

    Args:
        logp: log-probabilities ℓ, [..., T].
        mask: 1 on answer tokens, [..., T].
        threshold: a log-probability; tokens with ℓ > threshold are kept. ``None`` keeps all.
        empty: when the filter keeps nothing, ``"one"`` gives exp(0) = 1 (the released code),
            ``"unfiltered"`` falls back to all masked tokens.

    Returns:
        P, [...].
    """
    if empty not in ("one", "unfiltered"):
        raise ValueError(f"empty={empty!r}: use 'one' or 'unfiltered'")
    answer = mask.bool()
    return torch.exp(_log_probability(logp, answer, _kept(logp, answer, threshold), empty))


def _kept(logp: Tensor, answer: Tensor, threshold: float | None) -> Tensor:
    return answer if threshold is None else answer & (logp > threshold)


def _log_probability(logp: Tensor, answer: Tensor, kept: Tensor, empty: str) -> Tensor:
    """log P, which stays finite where P itself is too small for a number."""
    if empty == "unfiltered":
        kept = torch.where(kept.any(-1, keepdim=True), kept, answer)
    total = torch.where(kept, logp, torch.zeros_like(logp)).sum(-1)
    return total / (kept.sum(-1) + 1e-8)


def baseline_value(
    trajectory: Trajectory, scored: Round, before: Scored, config: ScoringConfig
) -> float:
    """The likelihood of the answer after a baseline, on the scale of ``scoring.reward``."""
    answer = _finite_baseline(trajectory, scored, before, config)
    kept = _kept(before.logp, answer, _threshold(config))
    return _value(_log_probability(before.logp, answer, kept, config.empty), config)


def write_reward(
    trajectory: Trajectory, scored: Round, before: Scored, memory: Scored, config: ScoringConfig
) -> None:
    """Writes ``memory_reward`` and what it was made from. Raises ``FloatingPointError`` for NaN or
    infinity."""
    # Checked before any filter: a threshold would silently leave NaN out.
    answer = _finite_baseline(trajectory, scored, before, config)
    _finite_answer(trajectory, scored, "memory", memory)
    kept_before = kept_memory = _kept(before.logp, answer, _threshold(config))
    if config.mask == "separate":
        kept_memory = _kept(memory.logp, answer, _threshold(config))
    log_before = _log_probability(before.logp, answer, kept_before, config.empty)
    log_memory = _log_probability(memory.logp, answer, kept_memory, config.empty)
    p_before, count = float(torch.exp(log_before)), float(answer.sum())
    of_history = config.baseline == "history"
    scored.p_full, scored.p_previous = (p_before, None) if of_history else (None, p_before)
    scored.kept_full = float(kept_before.sum()) / count if of_history else None
    scored.p_mem = float(torch.exp(log_memory))
    scored.kept_mem = float(kept_memory.sum()) / count
    scored.memory_reward = _value(log_memory, config) - _value(log_before, config)


def _value(log_probability: Tensor, config: ScoringConfig) -> float:
    logarithm = config.reward == "log_probability"
    return float(log_probability if logarithm else torch.exp(log_probability))


def _threshold(config: ScoringConfig) -> float | None:
    return None if config.threshold is None else math.log(config.threshold)


def _finite_baseline(
    trajectory: Trajectory, scored: Round, before: Scored, config: ScoringConfig
) -> Tensor:
    context = "history" if config.baseline == "history" else "question"
    return _finite_answer(trajectory, scored, context, before)


def _finite_answer(trajectory: Trajectory, scored: Round, context: str, found: Scored) -> Tensor:
    """The answer mask, [len(text)]. Raises ``FloatingPointError`` for NaN or infinity in it."""
    answer = torch.tensor(found.text.mask, dtype=torch.bool)
    if not bool(torch.isfinite(found.logp[answer]).all()):
        raise FloatingPointError(
            f"the memory reward of {trajectory.name}, round {scored.number} is not finite: the "
            f"policy's logits after the {context} hold NaN or infinity"
        )
    return answer
