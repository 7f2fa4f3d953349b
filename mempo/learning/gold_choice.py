"""Which gold text is scored (specification section 6, ``scoring.gold``).

``first`` joins the first alias of each objective. ``best`` chooses the aliases objective by
objective: each alias of an objective is tried with the other objectives at their first alias, and
the one after whose text P_full is highest is taken (of equal ones the first). The chosen aliases,
joined, are the text whose P_full and P_mem count, so that both contexts are asked for one text. So
the texts tried for n objectives of k aliases are n·(k − 1) + 1, and not kⁿ; for a single objective
the likeliest alias is found, for several the likeliest of each.

With ``scoring.baseline=previous``, which has no P_full, P after the question alone takes its place:
one text for the whole trajectory, since each memory is compared with the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from mempo.trajectory import Task

ALIAS_LIMIT = 64
"""So many aliases of an objective are tried, in their order, without repetitions."""


def gold_texts(task: Task, choice: str) -> list[str]:
    """The texts that are tried, none twice, the first aliases' first. For ``first`` that is all."""
    if choice == "first":
        return [task.gold]
    return list(dict.fromkeys([task.gold, *(t for row in _texts(task) for t in row.values())]))


def best_gold(task: Task, values: Mapping[str, float]) -> str:
    """The chosen aliases joined. ``values`` has P (or log P) for each of ``gold_texts``."""
    chosen = [max(texts, key=lambda alias: values[texts[alias]]) for texts in _texts(task)]
    return "; ".join(chosen)


def is_cut(task: Task) -> bool:
    """Whether an objective has more aliases than are tried."""
    return any(len(set(one.golds)) > ALIAS_LIMIT for one in task.objectives)


def _texts(task: Task) -> list[dict[str, str]]:
    """For each objective, the text that tries each of its aliases."""
    first = [objective.golds[0] for objective in task.objectives]
    return [
        {
            alias: "; ".join([*first[:index], alias, *first[index + 1 :]])
            for alias in [*dict.fromkeys(objective.golds)][:ALIAS_LIMIT]
        }
        for index, objective in enumerate(task.objectives)
    ]
