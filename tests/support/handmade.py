"""Trajectories made by hand, for tests of what reads them."""

from __future__ import annotations

from mempo.trajectory import Ending, Objective, Round, SpanKind, Task, TokenSequence, Trajectory


def make_task(name: str = "t1") -> Task:
    return Task(
        id=name,
        objectives=(Objective("Who?", ("Ann", "Anna")), Objective("Where?", ("Rome",))),
        source="handmade",
        metadata={"hops": 2},
    )


def make_round(
    number: int,
    memory_tokens: int = 0,
    *,
    p_mem: float | None = None,
    p_full: float | None = None,
    advantage: float | None = None,
) -> Round:
    """A round at tokens 10 × number; ``memory_tokens`` 0 means that it has no memory."""
    start = 10 * number
    return Round(
        number=number,
        sequence=0,
        snapshot_length=start,
        start=start,
        end=start + 9,
        text=f"round {number}",
        mem="a note" if memory_tokens else None,
        think="hm",
        action="search",
        argument="a query",
        memory_span=(start, start + memory_tokens) if memory_tokens else None,
        observation="found nothing",
        p_mem=p_mem,
        p_full=p_full,
        memory_reward=None if p_mem is None or p_full is None else p_mem - p_full,
        memory_advantage=advantage,
    )


def make_trajectory(
    task: str = "t1",
    sample: int = 0,
    *,
    epoch: int = 0,
    reward: float | None = 1.0,
    exact_match: float = 1.0,
    rounds: tuple[Round, ...] = (),
    ending: Ending | None = Ending.ANSWERED,
    tokens: int = 100,
    tool_calls: int = 1,
) -> Trajectory:
    sequence = TokenSequence()
    sequence.append_context([1, 2, 3])
    sequence.append_policy([4, 5], [-0.1, -0.2], [SpanKind.ACTION] * 2)
    return Trajectory(
        task=make_task(task),
        epoch=epoch,
        sample=sample,
        prompt_length=3,
        sequences=[sequence],
        rounds=list(rounds),
        ending=ending,
        answer="Ann; Rome",
        format_valid=bool(reward),
        metrics={"exact_match": exact_match, "f1": exact_match},
        reward=reward,
        outcome_advantage=0.5,
        total_tokens=tokens,
        peak_tokens=tokens // 2,
        tool_calls=tool_calls,
        tool_failures=1,
        tool_errors=0,
    )
