"""A trained agent with its engine and its tools, as one object that answers questions.

A question's trajectory is the one that evaluation would make of it (specification, section 9). It
is not judged: there is no gold answer.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing, contextmanager
from types import TracebackType
from typing import Self

from mempo.agent.collection import Attempt, Collection
from mempo.agent.rollout import Rollout
from mempo.ask.settings import check_context, check_question
from mempo.config import Config, writes_memory
from mempo.evaluation.evaluate import evaluation_attempt, evaluation_sampling
from mempo.evaluation.models import EvaluatedModel
from mempo.evaluation.standalone import ModelEngine
from mempo.runtime.errors import MempoError
from mempo.trajectory import Objective, Round, Task, Trajectory


class LoadedAgent:
    """Answers questions until it is closed; see ``load_agent``. One call at a time.

    ``name`` is the model's folder or hub name, ``config`` its settings, ``context`` what its rounds
    see unless a call says otherwise, and ``told`` the lines that say where settings come from.
    """

    def __init__(
        self,
        model: EvaluatedModel,
        rollout: Rollout,
        engine: ModelEngine,
        corpus: str,
        context: str,
        told: tuple[str, ...] = (),
    ) -> None:
        self.name = model.name
        self.label = model.label
        self.config: Config = model.config
        self.context = context
        self.told = told
        self._rollout = rollout
        self._engine: ModelEngine | None = engine
        self._corpus = corpus
        self._answering = threading.Lock()

    def ask(
        self,
        question: str,
        *,
        context: str | None = None,
        on_round: Callable[[Round], None] | None = None,
    ) -> Trajectory:
        """The trajectory of one question. ``on_round`` is called with each round as it comes.

        Raises ``MempoError`` for a blank question, and where too many tool calls fail.
        """
        attempt = self.attempt(question, context)
        with closing(self._watch(attempt)) as watched:
            for trajectory, rounds in watched:
                if on_round is not None:
                    for one in rounds:
                        on_round(one)
                result = trajectory
        return result

    def rounds(self, question: str, *, context: str | None = None) -> Generator[Round, None, None]:
        """The rounds of one question as they come, each with what its tool returned. Where the
        iterator is closed early the question is given up."""
        return self._rounds(self.attempt(question, context))

    def _rounds(self, attempt: Attempt) -> Generator[Round, None, None]:
        with closing(self._watch(attempt)) as watched:
            for _, rounds in watched:
                yield from rounds

    def ask_many(
        self,
        questions: Sequence[str],
        *,
        context: str | None = None,
        finished: Callable[[int, Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """The questions' trajectories, in their order. ``engine.max_num_seqs`` are on their way at
        a time, and none waits for another's round. ``finished`` is called with a question's place
        in ``questions`` as it ends."""
        attempts = {
            str(place): self.attempt(question, context) for place, question in enumerate(questions)
        }
        done: dict[str, Trajectory] = {}
        for key, trajectory in self._stream(attempts) if attempts else ():
            if trajectory.ending is not None:
                done[key] = trajectory
                if finished is not None:
                    finished(int(key), trajectory)
        return [done[key] for key in attempts]

    def close(self) -> None:
        """Releases the engine. Safe to call twice."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _watch(self, attempt: Attempt) -> Generator[tuple[Trajectory, list[Round]], None, None]:
        """The trajectory each time that it has gone on, with the rounds that are new and whole."""
        told = 0
        for _, trajectory in self._stream({"0": attempt}):
            whole = whole_rounds(trajectory, told)
            told += len(whole)
            yield trajectory, whole

    def _stream(
        self, attempts: dict[str, Attempt]
    ) -> Generator[tuple[str, Trajectory], None, None]:
        config = self.config
        sampling = evaluation_sampling(config.evaluation)
        at_once = config.engine.max_num_seqs
        with (
            self.alone(),
            closing(self._rollout.stream(attempts, sampling, at_once=at_once)) as stream,
        ):
            for key, trajectory in stream:
                if trajectory.ending is not None:
                    # Judged against no gold: a figure would only look like one.
                    trajectory.metrics, trajectory.reward = {}, None
                yield key, trajectory

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One call at a time: raises ``MempoError`` within another's block, and once closed."""
        if self._engine is None:
            raise MempoError("the agent was closed, and its engine with it: load it again")
        if not self._answering.acquire(blocking=False):
            raise MempoError(
                "the agent is answering another question: take its rounds to their end or close "
                "them, or ask several at a time with ask_many"
            )
        try:
            yield
        finally:
            self._answering.release()

    def has_memory(self, context: str | None = None) -> bool:
        """Whether the agent writes memories in a context (``None``: in its own)."""
        return writes_memory(self.config.evaluation.mode(context or self.context).context)

    # What a server needs (``mempo.ask.served``)

    def attempt(self, question: str, context: str | None) -> Attempt:
        """What the rollout makes of a question. Raises ``MempoError`` for one that is none, and
        ``ConfigError`` for a context that there is not."""
        context = context or self.context
        check_context(self.config, context)
        evaluation = self.config.evaluation
        return evaluation_attempt(self._task(question), evaluation, context, self.config.seed)

    def collection(self, executor: Executor) -> AbstractContextManager[Collection]:
        """An empty collection, to be used within ``alone`` (``Rollout.collection``)."""
        return self._rollout.collection({}, evaluation_sampling(self.config.evaluation), executor)

    def error_limits(self) -> tuple[float, dict[str, tuple[str, float]]]:
        """The share of tool calls that may fail, and setting and share of each tool that is counted
        apart (``Rollout.error_limits``)."""
        return self._rollout.max_tool_error_rate, self._rollout.error_limits()

    @property
    def max_model_len(self) -> int:
        """The tokens that the engine can hold of one question."""
        return self._rollout.engine.max_model_len

    def prompt_tokens(self, attempt: Attempt) -> int:
        """The tokens that an attempt begins with."""
        return len(self._rollout.prompt_ids(attempt))

    def _task(self, question: str) -> Task:
        """A task named by its question, so that its seeds come from the question."""
        check_question(question)
        digest = hashlib.sha256(question.encode()).hexdigest()
        objective = Objective(question, ())
        return Task(f"ask-{digest[:12]}", (objective,), source="ask", corpus=self._corpus)


def whole_rounds(trajectory: Trajectory, told: int) -> list[Round]:
    """The rounds after the first ``told`` that nothing more is added to. One whose tool is still at
    work has no observation yet."""
    return [
        one
        for one in trajectory.rounds[told:]
        if one.observation is not None or trajectory.ending is not None
    ]
