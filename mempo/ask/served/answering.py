"""Questions from many requests to one agent: one thread steps the engine, and no question waits for
another's round."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final

from mempo.agent.collection import Collection
from mempo.agent.error_rate import ErrorRate, ErrorRates
from mempo.agent.state_machine import Observed, tool_result
from mempo.agent.tools import ToolResult
from mempo.ask.agent import LoadedAgent, whole_rounds
from mempo.ask.served.tool_errors import ToolErrors
from mempo.runtime.errors import ConfigError, MempoError
from mempo.trajectory import Round, Trajectory

_LOG = logging.getLogger(__name__)

MOST_OPEN: Final = 1000
"""Questions that are answered or wait for it."""
TOOL_FAILED: Final = "The tool failed. Try again."
_IDLE_SECONDS: Final = 0.02


class Cause(StrEnum):
    """Why a question has no ending."""

    QUESTION = "question"
    TOO_LONG = "too_long"
    TOOLS = "tools"
    ENGINE = "engine"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Accepted:
    """The question waits for its first round, or is in it."""


@dataclass(frozen=True)
class RoundEnded:
    """A round with what its tool returned. ``tool_error``: the tool failed for a reason that is not
    the model's own."""

    round: Round
    tool_error: bool = False


@dataclass(frozen=True)
class Finished:
    """The last event of a question that has an ending."""

    trajectory: Trajectory


@dataclass(frozen=True)
class Failed:
    """The last event of any other, with a sentence for the person who asked."""

    cause: Cause
    message: str


Event = Accepted | RoundEnded | Finished | Failed


class TooManyQuestionsError(Exception):
    """``MOST_OPEN`` are on their way."""


@dataclass
class _Question:
    key: str
    text: str
    context: str | None
    tell: Callable[[Event], None]
    tool_errors: ToolErrors
    told: int = 0


class Answering:
    """Takes questions while it ``run``s. ``ask``, ``give_up`` and ``stop`` may be called from any
    thread, ``run`` in the one that the engine was started in."""

    def __init__(self, agent: LoadedAgent) -> None:
        self._agent = agent
        self._at_once = agent.config.engine.max_num_seqs
        self._error_limits = agent.error_limits()
        self._inbox: SimpleQueue[_Question | str | None] = SimpleQueue()
        self._open: dict[str, _Question] = {}
        self._keys = count()
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._stopped = False

    def ask(self, question: str, context: str | None, tell: Callable[[Event], None]) -> str:
        """Hands in a question; its key. ``tell`` is called in the engine's thread with each event,
        at last a ``Finished`` or a ``Failed``. Raises ``TooManyQuestionsError``."""
        key = str(next(self._keys))
        with self._lock:
            if not self._stopped:
                if len(self._asked) >= MOST_OPEN:
                    raise TooManyQuestionsError
                self._asked.add(key)
                errors = ToolErrors(*self._error_limits)
                self._inbox.put(_Question(key, question, context, tell, errors))
                return key
        tell(_STOPPED)
        return key

    def give_up(self, key: str) -> None:
        """Nothing more is told of a question. Harmless for one that has ended."""
        self._inbox.put(key)

    def stop(self) -> None:
        """Lets ``run`` end; questions on their way fail."""
        self._inbox.put(None)

    def run(self) -> None:
        """Answers until ``stop``. Where the engine raises, the questions on their way fail and the
        next ones are tried anew. Raises ``MempoError`` for an agent that is closed or answering."""
        try:
            with self._agent.alone():
                while not self._stopped:
                    self._run_once()
        finally:
            with self._lock:
                self._stopped = True
            self._fail_all(_STOPPED)

    def _run_once(self) -> None:
        executor = _Careful(self._agent.config.retriever.workers, thread_name_prefix="tool")
        try:
            with self._agent.collection(executor) as collection:
                while self._take(collection):
                    # Each question is judged by itself: at this rate nothing is raised.
                    for key, trajectory in collection.turn(
                        self._at_once, ErrorRates(ErrorRate(1.0)), _IDLE_SECONDS
                    ):
                        self._tell(key, trajectory)
                self._stopped = True
        except Exception as error:  # noqa: BLE001 - the questions on their way are told
            _LOG.exception("the engine failed")
            self._fail_all(Failed(Cause.ENGINE, f"the engine failed: {_named(error)}"))

    def _take(self, collection: Collection) -> bool:
        """Everything that has come in; waits where nothing is to be done. ``False`` to stop."""
        while True:
            try:
                item = self._inbox.get(block=not self._open)
            except Empty:
                return True
            if item is None:
                return False
            if isinstance(item, str):
                self._forget(item)
                collection.give_up(item)
            else:
                self._begin(item, collection)

    def _begin(self, question: _Question, collection: Collection) -> None:
        self._open[question.key] = question
        try:
            attempt = self._agent.attempt(question.text, question.context)
            tokens, most = self._agent.prompt_tokens(attempt), self._agent.max_model_len
        except (MempoError, ConfigError) as error:
            self._end(question, Failed(Cause.QUESTION, str(error)))
        except Exception as error:  # noqa: BLE001 - the one who asked is told
            _LOG.exception("a question could not be written as a prompt")
            self._end(question, Failed(Cause.ENGINE, f"the prompt failed: {_named(error)}"))
        else:
            if tokens >= most:
                message = (
                    f"the question is too long: with its instructions it has {tokens:,} tokens, "
                    f"and the engine holds {most:,} together with the answer"
                )
                self._end(question, Failed(Cause.TOO_LONG, message))
                return
            question.tell(Accepted())
            collection.add(question.key, attempt)

    def _tell(self, key: str, trajectory: Trajectory) -> None:
        question = self._open[key]
        for one in whole_rounds(trajectory, question.told):
            question.told += 1
            # Each round is told before the next one's tool is called.
            failed = trajectory.tool_errors > question.tool_errors.total
            if one.action is not None and one.observation is not None:
                question.tool_errors.count(one.action, failed)
            question.tell(RoundEnded(one, failed))
        if trajectory.ending is not None:
            self._end(question, self._ending(question, trajectory))

    def _ending(self, question: _Question, trajectory: Trajectory) -> Event:
        """As ``LoadedAgent.ask``: no answer that came of failing tools is passed on in silence."""
        fault = question.tool_errors.fault
        return Finished(trajectory) if fault is None else Failed(Cause.TOOLS, fault)

    def _end(self, question: _Question, event: Event) -> None:
        self._forget(question.key)
        question.tell(event)

    def _forget(self, key: str) -> None:
        self._open.pop(key, None)
        with self._lock:
            self._asked.discard(key)

    def _fail_all(self, event: Failed) -> None:
        """Ends the questions that have begun, and at the end those that have come in since."""
        while self._stopped:
            try:
                item = self._inbox.get(block=False)
            except Empty:
                break
            if isinstance(item, _Question):
                self._open[item.key] = item
        for question in list(self._open.values()):
            self._end(question, event)


_STOPPED: Final = Failed(Cause.STOPPED, "the server is stopping")


class _Careful(ThreadPoolExecutor):
    """Runs tools. What one raises is a failed call of its question, not the end of all."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        return super().submit(_careful, fn, *args, **named)


def _careful(call: Callable[..., Observed | ToolResult], *args: Any) -> Observed | ToolResult:
    try:
        observed = call(*args)
    except Exception as error:  # noqa: BLE001 - the model is told
        _LOG.exception("a tool raised")
        return ToolResult(text=TOOL_FAILED, short_text=TOOL_FAILED, error=_named(error))
    result = tool_result(observed)
    if result.error is not None:
        _LOG.warning("a tool failed: %s", result.error)
    return observed


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
