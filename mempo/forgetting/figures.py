"""What became of facts in trajectories of the generated world, as plain numbers.

A fact of a task's chains is *established* in the round in which a tool first tells it or a memory
first says it. Each later memory either holds it, has made up for it (a later fact of its chain is
there instead), has lost it (an earlier memory said it), or no memory has said it yet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mempo.learning.rewards import exact_match, split_answer
from mempo.records.fact_histories import FactHistory, FactState, fact_histories
from mempo.records.trajectory_lines import TrajectoryLine

CAUSES: Final = ("lost", "unwritten", "unseen", "known")
"""Why an objective was answered wrong: the first of these that holds for its chain."""

_AT_AGE: Final = {
    FactState.HELD: "held",
    FactState.SPENT: "made_up",
    FactState.LOST: "lost",
    FactState.TOLD: "unwritten",
}


def forgetting_figures(lines: Sequence[TrajectoryLine]) -> dict[str, Any]:
    """The figures of a group of trajectories; docs/evaluation.md says what each is.

    Each line has a chain for each of its objectives. Shares are ``None`` where there is nothing to
    divide by.
    """
    histories = [fact_histories(line) for line in lines]
    facts = [history for found in histories for history in found]
    causes = [wrong_objectives(line, found) for line, found in zip(lines, histories, strict=True)]
    wrong = sum(bool(one) for one in causes)
    from_lost = sum("lost" in one.values() for one in causes)
    by_age = _by_age(facts)
    counted = Counter(cause for one in causes for cause in one.values())
    return {
        "trajectories": len(lines),
        "objectives": sum(len(line.golds) for line in lines),
        "facts": len(facts),
        "established": sum(one.found_at is not None for one in facts),
        "all_ages": _counted(sum(by_age.values(), Counter[str]())),
        "by_age": {str(age): _counted(by_age[age]) for age in sorted(by_age)},
        "by_round": _losses_by_round(lines, histories),
        "wrong_trajectories": wrong,
        "wrong_from_lost_fact": from_lost,
        "wrong_share": _ratio(wrong, len(lines)),
        "wrong_from_lost_share": _ratio(from_lost, len(lines)),
        "lost_share_of_wrong": _ratio(from_lost, wrong),
        "wrong_objectives": {cause: counted[cause] for cause in CAUSES},
        "probabilities_by_round": _probabilities_by_round(lines),
    }


def wrong_objectives(line: TrajectoryLine, histories: Sequence[FactHistory]) -> dict[int, str]:
    """The objectives (from 0) whose part of the answer matches no gold, each with its cause.

    A fact is missed at the end when the last round's memory does not hold it, nor any later fact of
    its chain. The cause is ``lost`` when a memory had said one of the missed facts, else
    ``unwritten`` when a tool had told one, else ``unseen`` when one was never found, and ``known``
    when nothing was missed.
    """
    chains: defaultdict[int, list[FactHistory]] = defaultdict(list)
    for history in histories:
        chains[history.objective].append(history)
    parts, _ = split_answer(line.answer, len(line.golds))
    return {
        objective: _cause(chains[objective])
        for objective, (part, golds) in enumerate(zip(parts, line.golds, strict=True))
        if not exact_match(part, golds)
    }


def _cause(chain: Sequence[FactHistory]) -> str:
    last = [one.states[-1] if one.states else FactState.UNSEEN for one in chain]
    missed = {
        state
        for index, state in enumerate(last)
        if state is not FactState.HELD and FactState.HELD not in last[index:]
    }
    for state, cause in (
        (FactState.LOST, "lost"),
        (FactState.TOLD, "unwritten"),
        (FactState.UNSEEN, "unseen"),
    ):
        if state in missed:
            return cause
    return "known"


def _by_age(facts: Iterable[FactHistory]) -> dict[int, Counter[str]]:
    """Age: how many rounds before the memory's round the fact was established."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for one in facts:
        if one.found_at is not None:
            for age, state in enumerate(one.states[one.found_at :]):
                if age > 0:
                    counts[age][_AT_AGE[state]] += 1
    return counts


def _losses_by_round(
    lines: Sequence[TrajectoryLine], histories: Sequence[Sequence[FactHistory]]
) -> dict[str, dict[str, Any]]:
    """By round number: the facts that the memory before still carried (held or made up for), and
    how many of them this round's memory lost."""
    carried, lost = Counter[int](), Counter[int]()
    for line, found in zip(lines, histories, strict=True):
        numbers = [one.number for one in line.rounds]
        for history in found:
            for number, before in zip(numbers[1:], history.states, strict=False):
                carried[number] += before in (FactState.HELD, FactState.SPENT)
            lost.update(history.lost_in)
    return {
        str(number): {
            "carried": carried[number],
            "lost": lost[number],
            "share": _ratio(lost[number], carried[number]),
        }
        for number in sorted(carried)
        if carried[number]
    }


def _probabilities_by_round(lines: Sequence[TrajectoryLine]) -> dict[str, dict[str, Any]]:
    """By round number: the mean P_mem and P_full of the memories that were scored."""
    scored: defaultdict[int, list[tuple[float, float | None]]] = defaultdict(list)
    for line in lines:
        for one in line.rounds:
            if one.p_mem is not None:
                scored[one.number].append((one.p_mem, one.p_full))
    return {
        str(number): {
            "memories": len(values),
            "p_mem": _mean([p_mem for p_mem, _ in values]),
            "p_full": _mean([p_full for _, p_full in values if p_full is not None]),
        }
        for number, values in sorted(scored.items())
    }


def _counted(counts: Counter[str]) -> dict[str, Any]:
    total = counts.total()
    return {
        "memories": total,
        **{name: counts[name] for name in _AT_AGE.values()},
        "held_share": _ratio(counts["held"], total),
        "kept_share": _ratio(counts["held"] + counts["made_up"], total),
    }


def _mean(values: Sequence[float]) -> float | None:
    return _ratio(sum(values), len(values))


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None
