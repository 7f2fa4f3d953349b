"""A trajectory as one line of ``trajectories.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mempo.trajectory import Round, Trajectory


def trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    """Everything a person wants to read of a trajectory, as JSON values; no token ids.

    Values that were never computed are ``None``.
    """
    task = trajectory.task
    return {
        "epoch": trajectory.epoch,
        "task": task.id,
        "sample": trajectory.sample,
        "source": task.source,
        "question": task.question,
        "golds": [list(objective.golds) for objective in task.objectives],
        "metadata": dict(task.metadata),
        "rounds": [_round_record(one) for one in trajectory.rounds],
        "ending": None if trajectory.ending is None else trajectory.ending.value,
        "answer": trajectory.answer,
        "format_valid": trajectory.format_valid,
        "metrics": dict(trajectory.metrics),
        "reward": trajectory.reward,
        "outcome_advantage": trajectory.outcome_advantage,
        "total_tokens": trajectory.total_tokens,
        "peak_tokens": trajectory.peak_tokens,
        "policy_tokens": trajectory.policy_tokens,
        "tool_calls": trajectory.tool_calls,
        "tool_failures": trajectory.tool_failures,
        "tool_errors": trajectory.tool_errors,
        "repeated_rounds": trajectory.repeated_rounds,
    }


def _round_record(one: Round) -> dict[str, Any]:
    return {
        "number": one.number,
        "text": one.text,
        "mem": one.mem,
        "action": one.action,
        "argument": one.argument,
        "observation": one.observation,
        "tool_failed": one.tool_failed,
        "broken_rules": list(one.broken_rules),
        "memory_tokens": one.memory_tokens,
        "p_full": one.p_full,
        "p_mem": one.p_mem,
        "p_previous": one.p_previous,
        "memory_reward": one.memory_reward,
        "memory_advantage": one.memory_advantage,
        **({} if one.given is None else {"given": one.given}),
    }


def record_order(record: Mapping[str, Any]) -> tuple[int, str, int]:
    """Sort key of records: epoch, task, sample. It does not depend on how many processes ran."""
    return record["epoch"], record["task"], record["sample"]
