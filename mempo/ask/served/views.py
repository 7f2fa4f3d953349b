"""Events in the form that the page's script reads: plain JSON values."""

from __future__ import annotations

from typing import Any

from mempo.agent.protocol import OBSERVATION_CLOSE, OBSERVATION_OPEN
from mempo.ask.served.answering import Accepted, Event, Failed, Finished, RoundEnded
from mempo.ask.shown import cost_row, ending_row
from mempo.config import Config
from mempo.inspect.differences import memory_difference
from mempo.trajectory import Round, Trajectory


class QuestionView:
    """One question's events in order: a memory is compared with the newest one before it, in a
    context that has any (``memory``)."""

    def __init__(self, config: Config, memory: bool = True) -> None:
        self._config = config
        self._memory = memory
        self._before: str | None = None

    def event(self, event: Event) -> dict[str, Any]:
        """One line of the page's stream."""
        match event:
            case Accepted():
                return {"event": "accepted"}
            case RoundEnded(one, tool_error):
                view = round_view(one, self._before, self._memory)
                view["failed"] |= tool_error
                self._before = one.mem or self._before
                return {"event": "round", **view}
            case Finished(trajectory):
                return {"event": "ended", **ending_view(trajectory, self._config)}
            case Failed(cause, message):
                return {"event": "failed", "cause": cause, "message": message}


def round_view(one: Round, before: str | None, memory: bool = True) -> dict[str, Any]:
    """A round. ``difference`` is ``None`` without a memory; ``first``: there was none before;
    ``missed``: there should be one."""
    observation = one.observation
    if observation is not None:
        observation = observation.removeprefix(OBSERVATION_OPEN).removesuffix(OBSERVATION_CLOSE)
    return {
        "number": one.number,
        "difference": None if one.mem is None else memory_difference(before or "", one.mem),
        "first": before is None,
        "missed": memory and one.mem is None and one.number > 1,
        "memory_tokens": one.memory_tokens,
        "thought": one.think,
        "action": one.action,
        "argument": one.argument,
        "wrote": one.text if one.action is None else None,
        "observation": observation,
        "failed": one.tool_failed,
    }


def ending_view(trajectory: Trajectory, config: Config) -> dict[str, Any]:
    """The answer, or why there is none, and what the question took."""
    name, text = ending_row(trajectory, config)
    return {
        "answered": name == "answer",
        "text": trajectory.answer if name == "answer" else text.plain,
        "ending": trajectory.ending,
        "tokens": trajectory.total_tokens,
        "used": cost_row(trajectory)[1].plain,
    }
