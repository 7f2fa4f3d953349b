"""Trajectories on their way, with no lock-step (specification section 4).

Each trajectory runs on its own: GENERATING → TOOL → GENERATING → … → DONE. The engine is stepped
by one thread; tools run on worker threads meanwhile, which also cut and tokenize their results; a
slow tool holds up nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass

from mempo.agent.error_rate import ErrorRates
from mempo.agent.repeats import GenerationRequest
from mempo.agent.state_machine import Agent, AgentSettings, Observed, tool_result
from mempo.agent.tools import ToolResult
from mempo.engine.interface import ChatEngine, GenerationEngine, Sampling
from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Task, Trajectory

_IDLE_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Attempt:
    """One trajectory to make. The seeds of its requests come from ``seed_parts``, the task's id,
    the sample's number and the request's number within the trajectory, and from nothing else."""

    task: Task
    sample: int
    settings: AgentSettings
    seed_parts: tuple[object, ...] = ()
    epoch: int = 0


@dataclass(frozen=True)
class Progress:
    """One tick of the progress bar."""

    trajectories_done: int
    tokens: int


@dataclass(frozen=True)
class Watch:
    """Who is told of a collection and may end it.

    ``progress`` and ``finished`` (key and trajectory) are called as each trajectory ends;
    ``stopped`` is asked before every engine step.
    """

    progress: Callable[[Progress], None] | None = None
    finished: Callable[[str, Trajectory], None] | None = None
    stopped: Callable[[], bool] = lambda: False


class RolloutStopped(Exception):
    """The rollout was asked to stop."""


class Collection:
    """Attempts that share an engine and tools, until all of them have ended.

    ``run`` takes those of the beginning to their ends. Where more come in the meantime, ``add`` and
    ``give_up`` stand between calls of ``turn``, all from one thread.

    Args:
        engine: generates token ids.
        executor: runs tools.
        attempts: the trajectories to make, by key, in the order in which they begin.
        sampling: how tokens are drawn.
        start: makes the agent of an attempt.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        executor: Executor,
        attempts: Mapping[str, Attempt],
        sampling: Sampling,
        start: Callable[[Attempt], Agent],
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._attempts = dict(attempts)
        self._sampling = sampling
        self._greedy = sampling.temperature == 0.0
        self._start = start
        self._waiting = deque(attempts)
        self._agents: dict[str, Agent] = {}
        self._tool_calls: dict[Future[Observed | ToolResult], str] = {}

    def run(
        self, at_once: int, stopped: Callable[[], bool], errors: ErrorRates
    ) -> Iterator[tuple[str, Trajectory]]:
        """Key and trajectory of an attempt each time that it has gone on, the last time with its
        ``ending``; at most ``at_once`` are on their way.

        Raises ``RolloutStopped`` once ``stopped`` says so, and what engine, tools and ``errors``
        raise.
        """
        yield from self._begin(at_once)
        while self.busy:
            if stopped():
                raise RolloutStopped
            yield from self.turn(at_once, errors)
        errors.check()

    @property
    def busy(self) -> bool:
        """Whether the engine or a tool is at work, or an attempt waits for its beginning."""
        return bool(self._waiting or self._tool_calls or self._engine.has_unfinished())

    def add(self, key: str, attempt: Attempt) -> None:
        """One more attempt, behind those that wait. ``key`` is new."""
        self._attempts[key] = attempt
        self._waiting.append(key)

    def give_up(self, key: str) -> None:
        """Nothing more comes of an attempt, which may have ended; what the engine or a tool is
        doing for it is done and forgotten."""
        if key in self._waiting:
            self._waiting.remove(key)
        self._agents.pop(key, None)
        self._attempts.pop(key, None)

    def turn(
        self, at_once: int, errors: ErrorRates, idle_s: float = _IDLE_WAIT_SECONDS
    ) -> Iterator[tuple[str, Trajectory]]:
        """One step of the engine and what follows from it; see ``run``. Where the engine has
        nothing to do a tool is waited for, at most ``idle_s`` seconds."""
        yield from self._step_engine()
        yield from self._begin(at_once)
        yield from self._take_tool_results(errors, idle_s)
        yield from self._begin(at_once)

    def _begin(self, at_once: int) -> Iterator[tuple[str, Trajectory]]:
        while self._waiting and len(self._agents) < at_once:
            key = self._waiting.popleft()
            self._agents[key] = self._start(self._attempts[key])
            yield from self._proceed(key)

    def _step_engine(self) -> Iterator[tuple[str, Trajectory]]:
        for generation in self._engine.step() if self._engine.has_unfinished() else ():
            if generation.key not in self._agents:
                continue  # it was given up
            self._agents[generation.key].receive(
                generation.ids, generation.logprobs, generation.finish_reason
            )
            yield from self._proceed(generation.key)

    def _take_tool_results(
        self, errors: ErrorRates, idle_s: float
    ) -> Iterator[tuple[str, Trajectory]]:
        """Of the tool calls that have ended; waits for one where the engine has nothing to do."""
        if not self._tool_calls:
            return
        idle = not self._engine.has_unfinished()
        done, _ = wait(
            self._tool_calls,
            timeout=idle_s if idle else 0,
            return_when=FIRST_COMPLETED,
        )
        for future in done:
            key = self._tool_calls.pop(future)
            observed = future.result()
            if key not in self._agents:
                continue
            agent = self._agents[key]
            assert agent.pending_call is not None
            errors.record(agent.pending_call[0], tool_result(observed))
            agent.observe(observed)
            yield from self._proceed(key)

    def _proceed(self, key: str) -> Iterator[tuple[str, Trajectory]]:
        """Moves one trajectory to its next wait: for the engine, for a tool, or for nothing."""
        agent = self._agents[key]
        while agent.pending_call is None and (request := agent.next_request()) is not None:
            if not (self._greedy and agent.recall()):
                self._submit(key, agent, request)
                break
        else:
            self._call_tool_or_forget(key, agent)
        yield key, agent.trajectory

    def _call_tool_or_forget(self, key: str, agent: Agent) -> None:
        if agent.pending_call is not None:
            self._tool_calls[self._executor.submit(agent.call_tool)] = key
        else:
            del self._agents[key], self._attempts[key]

    def _submit(self, key: str, agent: Agent, request: GenerationRequest) -> None:
        seed_parts, trajectory = self._attempts[key].seed_parts, agent.trajectory
        seed = derive_seed(*seed_parts, trajectory.task.id, trajectory.sample, request.number)
        limit, sampling = request.max_tokens, self._sampling
        if isinstance(self._engine, ChatEngine):
            self._engine.submit_messages(key, agent.messages(), limit, seed, sampling)
        else:
            self._engine.submit(key, request.prompt_ids, limit, seed, sampling)
