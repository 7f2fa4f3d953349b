"""Outcome and memory advantages, z-scored within a task's group (specification section 7).

The statistics of the outcome are taken per trajectory and those of the memory per scored round,
before anything is spread over tokens or sequences. The two are normalized apart and only then
added: ``A = A_outcome + memory.weight · A_memory``. With ``memory.gamma`` a memory is credited with
the discounted rewards of the later memories of its trajectory too (docs/switches.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from mempo.config import MemoryConfig, OutcomeConfig
from mempo.trajectory import Round, Trajectory

EPSILON = 1e-6


def group_zscore(
    values: Tensor, groups: Tensor, std_floor: float, normalize_std: bool = True
) -> Tensor:
    """``(x - mean) / (max(std, std_floor) + 1e-6)`` within each group, std with n - 1.

    values: [N]; groups: [N], the integer group number of each value. Returns [N] in the dtype of
    ``values`` (float32 for integers). A group whose values are all equal gives exactly 0, and so
    does a group of one; this is decided on the values themselves, not on a computed deviation, and
    everything is computed in float64. ``normalize_std=False`` gives ``x - mean``. Raises
    ``ValueError`` for values that are not finite, a negative floor, or shapes that do not fit.
    """
    if values.dim() != 1 or groups.shape != values.shape:
        raise ValueError(
            f"values {tuple(values.shape)} and groups {tuple(groups.shape)} must both be [N]"
        )
    if std_floor < 0:
        raise ValueError(f"std_floor={std_floor}: it must not be negative")
    if not bool(torch.isfinite(values).all()):
        where = torch.nonzero(~torch.isfinite(values)).flatten().tolist()
        raise ValueError(f"values at {where[:8]} are not finite; no advantage can be computed")
    dtype = values.dtype if values.is_floating_point() else torch.float32
    if values.numel() == 0:
        return values.to(dtype)

    x = values.to(torch.float64)  # (N)
    labels, index = torch.unique(groups, return_inverse=True)  # (G), (N)
    zeros = x.new_zeros(labels.numel())  # (G)
    count = zeros.index_add(0, index, torch.ones_like(x))
    mean = zeros.index_add(0, index, x) / count
    centered = x - mean[index]  # (N)
    smallest = zeros.scatter_reduce(0, index, x, "amin", include_self=False)
    largest = zeros.scatter_reduce(0, index, x, "amax", include_self=False)
    constant = smallest == largest  # (G)
    if normalize_std:
        variance = zeros.index_add(0, index, centered.square()) / (count - 1).clamp(min=1)
        centered = centered / (variance.sqrt().clamp(min=std_floor) + EPSILON)[index]
    return torch.where(constant[index], torch.zeros_like(centered), centered).to(dtype)


def assign_advantages(
    trajectories: Sequence[Trajectory], outcome: OutcomeConfig, memory: MemoryConfig
) -> None:
    """Writes the advantages of one epoch into its trajectories (specification section 7).

    ``trajectories`` holds whole groups: all trajectories of each task in the epoch. Sets
    ``trajectory.outcome_advantage``, ``round.memory_advantage`` (before ``memory.weight``; ``None``
    on rounds that are not scored, and everywhere with ``memory.weight`` 0) and every sequence's
    ``advantages``: the outcome advantage on policy tokens, plus the weighted memory advantage on
    the policy tokens from ``<mem>`` through ``</mem>``, 0.0 on all other tokens. With
    ``memory.only_if_outcome_nonnegative`` the memory advantages of a trajectory with a negative
    outcome advantage are 0.0; they still count in the group's statistics.

    Raises ``ValueError`` for a reward or, with a positive weight, a memory reward that was never
    computed or is not finite; nothing is written then.
    """
    outcome_advantages = _zscore(
        [_outcome_reward(t) for t in trajectories],
        [_group(t) for t in trajectories],
        outcome.std_floor,
        outcome.normalize_std,
    )
    memory_advantages = _memory_advantages(trajectories, memory)
    for trajectory, advantage in zip(trajectories, outcome_advantages, strict=True):
        trajectory.outcome_advantage = advantage
        for number, round_ in enumerate(trajectory.rounds):
            scored = memory_advantages.get((id(trajectory), number))
            if scored is not None and memory.only_if_outcome_nonnegative and advantage < 0:
                scored = 0.0
            round_.memory_advantage = scored
        _write_token_advantages(trajectory, advantage, memory.weight)


def _memory_advantages(
    trajectories: Sequence[Trajectory], memory: MemoryConfig
) -> dict[tuple[int, int], float]:
    """The memory advantage by (identity of the trajectory, index of the round)."""
    if memory.weight == 0:
        return {}
    keys: list[tuple[int, int]] = []
    groups: list[Hashable] = []
    rewards: list[float] = []
    for trajectory in trajectories:
        for index, round_ in enumerate(trajectory.rounds):
            if not round_.is_scored:
                continue
            keys.append((id(trajectory), index))
            pool = round_.number if memory.pool == "round" else None
            groups.append((_group(trajectory), pool))
        rewards += _credits(trajectory, memory)
    advantages = _zscore(rewards, groups, memory.std_floor, memory.normalize_std)
    return dict(zip(keys, advantages, strict=True))


def _credits(trajectory: Trajectory, memory: MemoryConfig) -> list[float]:
    """What the memory of each scored round is credited with, before normalization: its reward less
    the length penalty, plus ``memory.gamma`` times the credit of the scored round after it. Rounds
    without a memory are no step: they neither count nor discount."""
    values: list[float] = []
    for round_ in trajectory.scored_rounds():
        penalty = memory.length_penalty * round_.memory_tokens / 100
        values.append(_memory_reward(trajectory, round_) - penalty)
    for index in reversed(range(len(values) - 1)):
        values[index] += memory.gamma * values[index + 1]
    return values


def _write_token_advantages(trajectory: Trajectory, advantage: float, weight: float) -> None:
    written = [
        [advantage if is_policy else 0.0 for is_policy in sequence.mask]
        for sequence in trajectory.sequences
    ]
    for round_ in trajectory.rounds:
        if round_.memory_span is None or round_.memory_advantage is None:
            continue
        mask = trajectory.sequences[round_.sequence].mask
        for token in range(*round_.memory_span):
            if mask[token]:
                written[round_.sequence][token] += weight * round_.memory_advantage
    for sequence, advantages in zip(trajectory.sequences, written, strict=True):
        sequence.advantages = advantages


def _zscore(
    values: Sequence[float], groups: Sequence[Hashable], std_floor: float, normalize_std: bool
) -> list[float]:
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return group_zscore(
        torch.tensor(values, dtype=torch.float64),
        torch.tensor([numbers[group] for group in groups], dtype=torch.long),
        std_floor,
        normalize_std,
    ).tolist()


def _group(trajectory: Trajectory) -> tuple[int, str]:
    """The trajectories of one task in one epoch are a group (specification section 1)."""
    return trajectory.epoch, trajectory.task.id


def _outcome_reward(trajectory: Trajectory) -> float:
    return _finite(trajectory.reward, f"the reward of {trajectory.name}")


def _memory_reward(trajectory: Trajectory, round_: Round) -> float:
    return _finite(
        round_.memory_reward, f"the memory reward of round {round_.number} of {trajectory.name}"
    )


def _finite(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"{name} was never computed: score the trajectories before this")
    if value - value != 0.0:
        raise ValueError(f"{name} is {value}: no advantage can be computed from it")
    return value
