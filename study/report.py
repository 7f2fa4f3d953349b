"""The report: what every variant reached, with spreads over seeds, and what differs from grpo."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Final

from study.cells import CONTEXTS, VARIANTS

COMPARED_WITH: Final = "grpo"
RESAMPLES: Final = 2000
TITLES: Final = {"memory": "memory alone", "full": "full history"}

Record = Mapping[str, Any]


def report(records: Sequence[Record], further: Sequence[Record] = ()) -> str:
    """``records`` (files of ``results/``) as Markdown: a table for each context, what some were
    asked besides, then commands."""
    by_variant = group(records)
    parts = []
    for context in CONTEXTS:
        if not (counts := objectives(records, context)):
            continue
        parts += [
            f"## {TITLES[context].capitalize()}",
            "",
            *_table(by_variant, context, counts),
            "",
        ]
    if further:
        parts += ["## Asked besides", "", *_further_table(further), ""]
    parts += ["## Commands", "", "```", *_commands(by_variant), "```", ""]
    return "\n".join(parts)


def group(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each variant by seed, in the order of ``VARIANTS``."""
    found: dict[str, list[Record]] = {}
    for variant in VARIANTS:
        own = [record for record in records if record["variant"] == variant.name]
        if own:
            found[variant.name] = sorted(own, key=lambda record: int(record["seed"]))
    return found


def objectives(records: Sequence[Record], context: str) -> list[str]:
    """The numbers of questions that were asked in this context, ascending."""
    return sorted({n for record in records for n in record["tasks"].get(context, {})}, key=int)


def seed_means(own: Sequence[Record], context: str, count: str, figure: str) -> list[float]:
    """The mean over tasks of each seed that has this part."""
    parts = [record["tasks"].get(context, {}).get(count) for record in own]
    return [fmean(part[figure]) for part in parts if part is not None]


def difference(
    own: Sequence[Record], other: Sequence[Record], context: str, count: str
) -> tuple[float, float, float] | None:
    """Exact match of ``own`` minus that of ``other``, its mean over seeds and tasks with a 95 %
    bootstrap interval: seeds are drawn again on both sides, and tasks, the same for both. ``None``
    where one of them was not asked this."""
    mine, others = (_matrix(records, context, count) for records in (own, other))
    if not mine or not others:
        return None
    rng = random.Random(f"study/{context}/{count}")
    tasks = range(len(mine[0]))
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.choices(tasks, k=len(tasks))
        a, b = (
            fmean(fmean(row[task] for task in chosen) for row in rng.choices(rows, k=len(rows)))
            for rows in (mine, others)
        )
        drawn.append(a - b)
    drawn.sort()
    mean = fmean(map(fmean, mine)) - fmean(map(fmean, others))
    return mean, drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def _matrix(own: Sequence[Record], context: str, count: str) -> list[list[float]]:
    """Exact match by seed and task."""
    parts = [record["tasks"].get(context, {}).get(count) for record in own]
    return [part["exact_match"] for part in parts if part is not None]


def _table(
    by_variant: Mapping[str, Sequence[Record]], context: str, counts: Sequence[str]
) -> list[str]:
    heads = [f"{count} question{'s' * (count != '1')}" for count in counts]
    compared = [f"minus `{COMPARED_WITH}`, {count}" for count in counts[1:]]
    lines = [
        "| variant | seeds | " + " | ".join([*heads, *compared, "tokens a task"]) + " |",
        "|---" * (3 + len(heads) + len(compared)) + "|",
    ]
    reference = by_variant.get(COMPARED_WITH, [])
    for name, own in by_variant.items():
        cells = [_spread(seed_means(own, context, count, "exact_match")) for count in counts]
        for count in counts[1:]:
            found = None if name == COMPARED_WITH else difference(own, reference, context, count)
            cells.append("" if found is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*found))
        tokens = [seed_means(own, context, count, "total_tokens") for count in counts]
        cells.append(" / ".join(f"{fmean(one):.0f}" if one else "–" for one in tokens))
        title = own[0]["title"]
        lines.append(f"| `{name}`: {title} | {len(own)} | " + " | ".join(cells) + " |")
    return lines


def _further_table(further: Sequence[Record]) -> list[str]:
    lines = [
        "| asked | variant | questions | memory alone | tokens a task | full history "
        "| tokens a task |",
        "|---" * 7 + "|",
    ]
    order = [variant.name for variant in VARIANTS]
    for record in sorted(further, key=lambda one: (one["further"], order.index(one["variant"]))):
        for count in objectives([record], CONTEXTS[0]):
            figures = [
                f"{fmean(record['tasks'][context][count][figure]):.{digits}f}"
                for context in CONTEXTS
                for figure, digits in (("exact_match", 1), ("total_tokens", 0))
            ]
            cells = [record["further"], f"`{record['variant']}`", count, *figures]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(values: Sequence[float]) -> str:
    """Mean, lowest and highest, and the standard deviation over seeds."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{fmean(values):.1f} ({min(values):.1f}–{max(values):.1f}, sd {stdev(values):.1f})"


def _commands(by_variant: Mapping[str, Sequence[Record]]) -> list[str]:
    return [command for own in by_variant.values() for command in own[0]["commands"]]
