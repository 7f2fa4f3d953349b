"""Judges finished trajectories (specification section 5), off the engine's thread where that takes
time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from mempo.config import RewardConfig
from mempo.judging.judge import Judge
from mempo.judging.own_functions import RewardFunction, call_function, load_function
from mempo.judging.workers import Workers
from mempo.learning.rewards import outcome_reward, score_answer
from mempo.runtime.errors import MempoError
from mempo.trajectory import Trajectory

CACHE_DIR: Final = ".cache/mempo"

Finished = tuple[str, Trajectory]


@dataclass
class _Job:
    """A trajectory that is being judged; ``function`` has been at work since ``since``."""

    key: str
    trajectory: Trajectory
    future: Future[dict[str, float]] = field(default_factory=Future)
    function: str | None = None
    since: float = 0.0


class Judging:
    """Judges trajectories as they finish, for one epoch or evaluation. A context manager; all
    methods are called from one thread.

    Answer metrics are computed at once, and where the reward consists of them ``take`` gives the
    trajectory back straight away. Functions of one's own and the judge run on ``workers`` threads.

    Args:
        config: the reward.
        cache_dir: where a judge's verdicts are kept.
        clock: seconds, ever growing.
    """

    def __init__(
        self,
        config: RewardConfig,
        cache_dir: str = CACHE_DIR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._clock = clock
        self._functions = load_functions(config)
        self._judge = Judge(config.judge, cache_dir) if config.judged else None
        self._workers = Workers(config.workers, "reward")
        self._done: list[Finished] = []
        self._jobs: list[_Job] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._workers.close()
        if self._judge is not None:
            self._judge.close()

    @property
    def pending(self) -> int:
        """Trajectories that ``take`` has not given back."""
        return len(self._done) + len(self._jobs)

    def begin(self, key: str, trajectory: Trajectory) -> None:
        """Begins to judge a finished trajectory, whose ``format_valid`` is known."""
        trajectory.metrics = score_answer(trajectory.answer, trajectory.task)
        if not self._functions and self._judge is None:
            self._done.append((key, self._rewarded(trajectory)))
            return
        job = _Job(key, trajectory)
        self._jobs.append(job)
        job.future = self._workers.submit(lambda: self._score(job))

    def take(self, wait_seconds: float = 0.0) -> Iterator[Finished]:
        """The trajectories that are judged now, with ``metrics`` and ``reward``; where none is, it
        waits so long for one.

        Raises ``MempoError`` for a function that takes longer than ``reward.timeout_s``, and what
        functions and the judge raise.
        """
        if not self._done and self._jobs:
            futures = [job.future for job in self._jobs]
            wait(futures, min(wait_seconds, self._config.timeout_s), FIRST_COMPLETED)
        for job in [*self._jobs]:
            if job.future.done():
                self._jobs.remove(job)
                job.trajectory.metrics.update(job.future.result())
                self._done.append((job.key, self._rewarded(job.trajectory)))
            else:
                self._check_time(job)
        done, self._done = self._done, []
        yield from done

    def check(self) -> None:
        """For the end, when nothing is pending. Raises ``MempoError`` where a judge failed too
        often."""
        if self._judge is not None:
            self._judge.check()

    def _score(self, job: _Job) -> dict[str, float]:
        """On a worker's thread."""
        one, metrics = job.trajectory, {}
        for name, function in self._functions.items():
            job.since, job.function = self._clock(), name
            metrics.update(call_function(name, function, one.answer, one.task, one.name))
            job.function = None
        if self._judge is not None:
            metrics.update(self._judge.score(one.answer, one.task))
        return metrics

    def _check_time(self, job: _Job) -> None:
        name, since = job.function, job.since
        if name is not None and self._clock() - since > self._config.timeout_s:
            raise MempoError(
                f"the reward {name} took longer than reward.timeout_s={self._config.timeout_s:g} "
                f"seconds for {job.trajectory.name}: make it faster, or raise the limit"
            )

    def _rewarded(self, trajectory: Trajectory) -> Trajectory:
        valid = bool(trajectory.format_valid)
        trajectory.reward = outcome_reward(trajectory.metrics, valid, self._config.weights)
        return trajectory


def load_functions(config: RewardConfig) -> dict[str, RewardFunction]:
    """The functions of one's own that the reward names. Raises ``ConfigError``."""
    setting = "reward.metric" if config.terms is None else "reward.terms"
    return {name: load_function(name, setting) for name in config.functions}


def check_reward(config: RewardConfig, cache_dir: str) -> None:
    """Looks at what a reward names before anything is loaded: imports the functions, fills in the
    judge's prompt and asks it once. Raises ``ConfigError`` and ``MempoError``."""
    load_functions(config)
    if not config.judged:
        return
    judge = Judge(config.judge, cache_dir)
    try:
        judge.probe()
    finally:
        judge.close()
