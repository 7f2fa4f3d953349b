"""Trajectories in the form that the page's script reads: plain JSON values, texts said once.

Advantages by span: ``trajectories.jsonl`` holds no tokens, but each token's final advantage follows
from what it holds (specification section 7). All policy text carries the trajectory's outcome
advantage; the round's first complete memory, tags included, carries ``memory.weight`` × the round's
memory advantage on top. Observations carry none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mempo.agent.protocol import DEFAULT_PROTOCOL, MEMORY_TAG, Protocol, parse_round
from mempo.config import writes_memory
from mempo.inspect.differences import memory_difference
from mempo.inspect.reading import Run
from mempo.inspect.selection import by_importance, within
from mempo.records.fact_histories import FactHistory, FactState, fact_histories
from mempo.records.trajectory_lines import RoundLine, TrajectoryLine
from mempo.runtime.errors import MempoError
from mempo.runtime.run_folder import TRAJECTORIES_FILE
from mempo.world.relations import RELATION

FACT_CODES: Final = {
    FactState.HELD: "h",
    FactState.SPENT: "s",
    FactState.LOST: "l",
    FactState.TOLD: "t",
    FactState.UNSEEN: "u",
}
"""How the page's script is told a fact's state."""


@dataclass(frozen=True)
class Limits:
    """How much a page holds: ``trajectories`` of them (``None``: as many as fit into ``budget``
    bytes), and ``observation_chars`` characters of each observation."""

    trajectories: int | None = None
    observation_chars: int = 4000
    budget: int = 16_000_000


@dataclass
class Table:
    """Values that many trajectories share; each is kept once and named by its position."""

    values: list[Any] = field(default_factory=list)
    _positions: dict[str, int] = field(default_factory=dict)

    def position(self, value: Any) -> int:
        """The position of a JSON value, which is added if it is new."""
        key = json.dumps(value)
        if key not in self._positions:
            self._positions[key] = len(self.values)
            self.values.append(value)
        return self._positions[key]


def trajectory_views(run: Run, limits: Limits) -> dict[str, Any]:
    """``trajectories`` (those that the limits let in, in the file's order), the ``tasks`` and
    ``observations`` that they refer to by position, and the ``total`` number in the file.

    Raises ``MempoError`` with the line of a trajectory whose chains of facts are not the world's.
    """
    tasks, observations = Table(), Table()
    protocol = Protocol(run.settings.tools)
    own = run.settings.context
    groups = Counter((one.epoch, one.task) for one in run.trajectories)
    views: dict[int, dict[str, Any]] = {}

    def bytes_of(index: int) -> int:
        line = run.trajectories[index]
        known = len(tasks.values), len(observations.values)
        try:
            view = trajectory_view(
                line,
                run.settings.memory_weight,
                limits,
                tasks,
                observations,
                protocol.with_memory(writes_memory(line.context or own)),
            )
        except ValueError as error:
            path = run.folder / TRAJECTORIES_FILE
            raise MempoError(f"{path}, line {index + 1}: {error}") from None
        views[index] = {"line": index + 1, "group_size": groups[line.epoch, line.task], **view}
        new = [views[index], tasks.values[known[0] :], observations.values[known[1] :]]
        return len(json.dumps(new))

    order = by_importance(run.trajectories)
    budget = limits.budget if limits.trajectories is None else None
    chosen = within(order, limits.trajectories, bytes_of, budget)
    return {
        "trajectories": [views[index] for index in chosen],
        "tasks": tasks.values,
        "observations": observations.values,
        "total": len(run.trajectories),
    }


def trajectory_view(
    line: TrajectoryLine,
    memory_weight: float,
    limits: Limits,
    tasks: Table,
    observations: Table,
    protocol: Protocol = DEFAULT_PROTOCOL,
) -> dict[str, Any]:
    """One trajectory; its task and observations go into the tables.

    ``epoch`` counts from 1, as the terminal does. ``memory`` is the mean memory reward, ``held``
    the number of the task's facts that the last round's memory holds or no longer needs, ``lost``
    the rounds whose memory lost one.
    """
    histories = fact_histories(line)
    made_up = (FactState.HELD, FactState.SPENT)
    return {
        "task": tasks.position(_task_view(line, histories)),
        "epoch": line.epoch + 1,
        "sample": line.sample,
        "reward": _short(line.reward),
        "memory": _short(line.memory_reward),
        "outcome": _short(line.outcome_advantage),
        "ending": line.ending,
        "answer": line.answer,
        "valid": line.format_valid,
        "metrics": {key: _short(value) for key, value in line.metrics.items()},
        "held": sum(bool(one.states) and one.states[-1] in made_up for one in histories),
        "lost": sorted({number for one in histories for number in one.lost_in}),
        "tokens": line.total_tokens,
        "peak": line.peak_tokens,
        "policy": line.policy_tokens,
        "calls": line.tool_calls,
        "failures": line.tool_failures,
        "errors": line.tool_errors,
        **({} if protocol.memory else {"without_memory": True}),
        "rounds": [
            {
                **_round_view(one, _memory_before(line.rounds, index)),
                "spans": span_views(one, line.outcome_advantage, memory_weight, protocol),
                "final": _short(_final(line.outcome_advantage, memory_weight, one)),
                "facts": [fact_code(history, index, one.number) for history in histories],
                **_observation_view(one, limits.observation_chars, observations),
            }
            for index, one in enumerate(line.rounds)
        ],
    }


def fact_code(history: FactHistory, index: int, number: int) -> str:
    """The state's code, "+" where the memory names the object without
    saying the fact, "!" where round ``number`` (at ``index``) lost it."""
    named = "+" if history.named[index] else ""
    return FACT_CODES[history.states[index]] + named + ("!" if number in history.lost_in else "")


def span_views(
    one: RoundLine,
    outcome_advantage: float | None,
    memory_weight: float,
    protocol: Protocol = DEFAULT_PROTOCOL,
) -> list[tuple[str, str, float | None]]:
    """The round's text cut into (kind, text, final advantage); the texts together are the round's.

    The advantage is ``None`` where none was computed.
    """
    spans = parse_round(one.text, max(one.number, 1), protocol).spans
    memory = next((span for span in spans if span.tag == MEMORY_TAG and span.closed), None)
    return [
        (
            span.kind,
            one.text[span.start : span.end],
            _short(
                _final(outcome_advantage, memory_weight, one)
                if span is memory
                else outcome_advantage
            ),
        )
        for span in spans
    ]


def _final(outcome_advantage: float | None, memory_weight: float, one: RoundLine) -> float | None:
    """The final advantage on the round's memory."""
    if outcome_advantage is None:
        return None
    return outcome_advantage + memory_weight * (one.memory_advantage or 0.0)


def _task_view(line: TrajectoryLine, histories: Sequence[FactHistory]) -> dict[str, Any]:
    return {
        "id": line.task,
        "source": line.source,
        "question": line.question,
        "golds": line.golds,
        "facts": [
            {
                "objective": one.objective + 1,
                "subject": one.fact.subject,
                "noun": RELATION[one.fact.relation].noun,
                "object": one.fact.object,
            }
            for one in histories
        ],
    }


def _round_view(one: RoundLine, before: str | None) -> dict[str, Any]:
    return {
        "number": one.number,
        "difference": None if one.mem is None else memory_difference(before or "", one.mem),
        "action": one.action,
        "argument": one.argument,
        "failed": one.tool_failed,
        "rules": one.broken_rules,
        "memory_tokens": one.memory_tokens,
        "p_full": _short(one.p_full),
        "p_mem": _short(one.p_mem),
        "memory_reward": _short(one.memory_reward),
        "memory_advantage": _short(one.memory_advantage),
    }


def _memory_before(rounds: Sequence[RoundLine], index: int) -> str | None:
    """The newest memory before round ``index``."""
    return next((one.mem for one in reversed(rounds[:index]) if one.mem is not None), None)


def _observation_view(one: RoundLine, limit: int, observations: Table) -> dict[str, Any]:
    if one.observation is None:
        return {"observation": None, "cut": 0}
    shown = one.observation[:limit]
    return {
        "observation": observations.position(shown),
        "cut": len(one.observation) - len(shown),
    }


def _short(value: float | None) -> float | None:
    """Five digits are what a reader sees; the file has the rest."""
    return None if value is None else float(f"{value:.5g}")
