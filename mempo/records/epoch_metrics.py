"""What an epoch's trajectories say: flat metrics, means over all trajectories of all processes.

Sums and counts are collected per process and merged, so that a mean does not depend on how
trajectories were split over processes, and a key that only one process knows (a seventh round, say)
is not lost. A key without a sample is absent, never 0. docs/metrics.md says what each key means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from mempo.data.sources import source_name
from mempo.trajectory import Ending, Round, Trajectory

REWARD, P_MEM, P_FULL = "memory_reward", "p_mem", "p_full"
"""The quantities whose distributions are logged by round."""

BY_SOURCE: Final = ("exact_match", "f1")
"""Answer metrics that are logged by source."""

QUANTILES: Final = (10, 50, 90)
"""Percentiles of the distributions by round, interpolated linearly between values."""


@dataclass
class MetricSums:
    """Sums that can be merged.

    ``means`` holds (sum, number of samples) per key, ``totals`` plain sums, ``values`` every value
    of the quantities whose quantiles are logged, by quantity and round number, and ``groups`` the
    lowest and highest reward per (epoch, task), to tell constant groups even when a group is
    spread over processes.
    """

    means: dict[str, tuple[float, int]] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    values: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    groups: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)

    def add_mean(self, key: str, value: float, samples: int = 1) -> None:
        """Adds ``samples`` samples whose sum is ``value``."""
        total, count = self.means.get(key, (0.0, 0))
        self.means[key] = (total + value, count + samples)

    def add_total(self, key: str, value: float) -> None:
        self.totals[key] = self.totals.get(key, 0.0) + value

    def add_values(self, quantity: str, number: int, values: Iterable[float]) -> None:
        """Adds values of ``quantity`` in round ``number``."""
        self.values.setdefault((quantity, number), []).extend(values)

    def add_reward(self, group: tuple[int, str], low: float, high: float) -> None:
        """Widens the range of a group's rewards."""
        old_low, old_high = self.groups.get(group, (low, high))
        self.groups[group] = (min(low, old_low), max(high, old_high))

    def merge(self, other: MetricSums) -> None:
        """Adds what ``other`` has seen."""
        for key, (total, count) in other.means.items():
            self.add_mean(key, total, count)
        for key, value in other.totals.items():
            self.add_total(key, value)
        for (quantity, number), found in other.values.items():
            self.add_values(quantity, number, found)
        for group, (low, high) in other.groups.items():
            self.add_reward(group, low, high)

    def result(self) -> dict[str, float]:
        """The metrics, sorted by key."""
        values = dict(self.totals)
        values.update({key: total / count for key, (total, count) in self.means.items() if count})
        for (quantity, number), found in self.values.items():
            for percent, value in zip(QUANTILES, np.percentile(found, QUANTILES), strict=True):
                values[f"{quantity}_quantiles/round_{number}_p{percent}"] = float(value)
        rewards = [
            one for (name, _), found in self.values.items() if name == REWARD for one in found
        ]
        if rewards:
            values["memory/reward_std"] = float(np.std(rewards))
        if self.groups:
            constant = sum(low == high for low, high in self.groups.values())
            values["groups/count"] = float(len(self.groups))
            values["groups/constant_share"] = constant / len(self.groups)
        return dict(sorted(values.items()))


def collect(trajectories: Iterable[Trajectory], sources: Sequence[str] = ()) -> MetricSums:
    """The sums over one process's trajectories, and by the ``sources`` that are named
    (``mempo.data.sources``).

    Raises ``ValueError`` for a trajectory that has no ending or no reward: left out, it would
    make the means of the others look like the epoch's.
    """
    sums = MetricSums()
    for trajectory in trajectories:
        if trajectory.ending is None or trajectory.reward is None:
            missing = "ending" if trajectory.ending is None else "reward"
            raise ValueError(f"{trajectory.name} has no {missing}; metrics come after the rollout")
        _add_trajectory(sums, trajectory, trajectory.ending, trajectory.reward)
        for one in trajectory.rounds:
            _add_round(sums, one)
        if sources:
            _add_source(sums, trajectory, trajectory.reward, sources)
    return sums


def _add_source(
    sums: MetricSums, trajectory: Trajectory, reward: float, sources: Sequence[str]
) -> None:
    name = source_name(trajectory.task.source, sources)
    for source in sources:
        sums.add_mean(f"share_by_source/{source}", float(source == name))
    sums.add_mean(f"reward_by_source/{name}", reward)
    for metric in BY_SOURCE:
        if metric in trajectory.metrics:
            sums.add_mean(f"{metric}_by_source/{name}", trajectory.metrics[metric])
    for one in trajectory.rounds:
        if one.memory_reward is not None:
            sums.add_mean(f"memory_reward_by_source/{name}", one.memory_reward)


def _add_trajectory(
    sums: MetricSums, trajectory: Trajectory, ending: Ending, reward: float
) -> None:
    sums.add_total("rollout/trajectories", 1)
    sums.add_mean("rollout/rounds_mean", len(trajectory.rounds))
    sums.add_mean("rollout/questions_mean", len(trajectory.task.objectives))
    sums.add_mean("reward/mean", reward)
    sums.add_reward((trajectory.epoch, trajectory.task.id), reward, reward)
    for name, value in trajectory.metrics.items():
        sums.add_mean(f"reward/{name}", value)
    if trajectory.format_valid is not None:
        sums.add_mean("reward/format_valid", float(trajectory.format_valid))
    for other in Ending:
        sums.add_mean(f"ending/{other.value}", float(other is ending))
    sums.add_mean("tokens/total_mean", trajectory.total_tokens)
    sums.add_mean("tokens/peak_mean", trajectory.peak_tokens)
    sums.add_mean("tokens/policy_mean", trajectory.policy_tokens)
    sums.add_total("tools/calls", trajectory.tool_calls)
    sums.add_total("tools/failures", trajectory.tool_failures)
    sums.add_total("tools/errors", trajectory.tool_errors)


def scored_values(one: Round) -> Iterator[tuple[str, float]]:
    """What scoring found for a round, by quantity; nothing for a round that was not scored."""
    for quantity, value in (
        (REWARD, one.memory_reward),
        (P_MEM, one.p_mem),
        (P_FULL, one.p_full),
    ):
        if value is not None:
            yield quantity, value


def _add_round(sums: MetricSums, one: Round) -> None:
    if one.number > 1:
        sums.add_mean("memory/written_share", float(one.memory_span is not None))
    if one.memory_span is not None:
        sums.add_mean("memory/tokens_mean", one.memory_tokens)
        sums.add_mean(f"memory_tokens_by_round/round_{one.number}", one.memory_tokens)
    for quantity, value in scored_values(one):
        sums.add_values(quantity, one.number, [value])
    for key, mean in _means_of_scores(one):
        if mean is not None:
            sums.add_mean(key, mean)


def _means_of_scores(one: Round) -> Iterator[tuple[str, float | None]]:
    yield "memory/reward_mean", one.memory_reward
    yield "memory/p_mem_mean", one.p_mem
    yield "memory/p_full_mean", one.p_full
    yield "memory/p_previous_mean", one.p_previous
    yield f"memory_reward_by_round/round_{one.number}", one.memory_reward
    yield f"memory_advantage_by_round/round_{one.number}", one.memory_advantage
    for name, kept in (("mem", one.kept_mem), ("full", one.kept_full)):
        yield f"filter/kept_{name}", kept
        yield f"filter/none_kept_{name}", None if kept is None else float(kept == 0.0)
