"""Which tasks an epoch draws where ``rollout.curriculum`` is on: by what the epochs before gave.

A group whose trajectories are all right or all wrong has no outcome advantage, so a task whose
group was neither comes more often, and one that was settled more rarely. Tasks of more questions
come once those of fewer are answered.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mempo.config import CurriculumConfig
from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Task, Trajectory


class Curriculum:
    """Draws tasks, and takes down their groups' rewards.

    Every process makes the same one and is told the same rewards. ``questions`` is the most that a
    task may have now; it begins with the fewest that any has.
    """

    def __init__(self, tasks: Sequence[Task], config: CurriculumConfig, seed: int) -> None:
        self._by_count: dict[int, list[Task]] = {}
        for task in tasks:
            self._by_count.setdefault(len(task.objectives), []).append(task)
        self._count_of = {task.id: len(task.objectives) for task in tasks}
        self._config = config
        self._seed = seed
        self._mixed: dict[str, bool] = {}
        self._recent: list[float] = []
        self.questions = min(self._by_count)

    def draw(self, epoch: int, count: int) -> list[Task]:
        """``count`` tasks, none twice: each place to one of the open numbers of questions, all
        equally likely, then to one of its tasks by their weights."""
        rng = random.Random(derive_seed(self._seed, "curriculum", epoch))
        opened = [number for number in sorted(self._by_count) if number <= self.questions]
        left = {number: list(self._by_count[number]) for number in opened}
        chosen: list[Task] = []
        while len(chosen) < count:
            filled = [number for number in opened if left[number]]
            if not filled:  # the open ones are used up: a harder one before none
                opened.append(min(number for number in self._by_count if number not in left))
                left[opened[-1]] = list(self._by_count[opened[-1]])
                continue
            among = left[rng.choice(filled)]
            (index,) = rng.choices(range(len(among)), [self._weight(task) for task in among])
            chosen.append(among.pop(index))
        return chosen

    def note(self, rewards: Mapping[str, Sequence[float]]) -> None:
        """Takes down an epoch: the rewards of each task's group, by ``Task.id``."""
        for name in sorted(rewards):
            group = rewards[name]
            self._mixed[name] = min(group) < max(group)
            if self._count_of[name] == self.questions:
                self._recent.append(sum(group) / len(group))
        self._recent = self._recent[-self._config.window :]
        full = len(self._recent) == self._config.window
        if full and sum(self._recent) / len(self._recent) >= self._config.grow_at:
            more = [number for number in self._by_count if number > self.questions]
            if more:
                self.questions, self._recent = min(more), []

    def state_dict(self) -> dict[str, Any]:
        """What a run goes on with; plain values."""
        return {
            "questions": self.questions,
            "recent": list(self._recent),
            "mixed": dict(self._mixed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.questions = int(state["questions"])
        self._recent = [float(mean) for mean in state["recent"]]
        self._mixed = {str(name): bool(mixed) for name, mixed in state["mixed"].items()}

    def _weight(self, task: Task) -> float:
        mixed = self._mixed.get(task.id)
        if mixed is None:
            return 1.0
        return self._config.mixed_weight if mixed else self._config.settled_weight


def outcome(trajectory: Trajectory) -> float:
    """Its reward. Raises ``ValueError`` where there is none yet."""
    if trajectory.reward is None:
        raise ValueError(f"{trajectory.name} has no reward; a curriculum comes after the rollout")
    return trajectory.reward


def rewards_by_task(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """The rewards of each task's group, of pairs of ``Task.id`` and a trajectory's reward."""
    found: dict[str, list[float]] = {}
    for name, reward in pairs:
        found.setdefault(name, []).append(reward)
    return found
