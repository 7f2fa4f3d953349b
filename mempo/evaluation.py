"""Long-horizon evaluation and its table (specification section 9)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from mempo.agent import AgentSettings
from mempo.config import EvaluationConfig
from mempo.gather import gather_objects
from mempo.generation import Sampling
from mempo.rollout import Progress, Rollout
from mempo.trajectory import Task, Trajectory

ContextName = Literal["memory", "full"]
_TABLE_WIDTH = 110
_PERCENT = ("exact_match", "f1", "f1_set")


def evaluation_settings(
    config: EvaluationConfig, context: ContextName, max_observation_tokens: int
) -> AgentSettings:
    """The agent's limits at evaluation, in one context mode.

    ``full`` shows the model its whole history (the plain ReAct baseline, ``keep_steps: all``).
    """
    return AgentSettings(
        context=context,
        max_rounds=config.max_rounds,
        max_response_tokens=config.max_response_tokens,
        max_round_tokens=config.max_round_tokens,
        max_observation_tokens=max_observation_tokens,
        prefill_memory=config.prefill_memory,
        newest=config.memory_context.newest,
        keep_steps=config.memory_context.keep_steps,
    )


def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    config: EvaluationConfig,
    max_observation_tokens: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """One entry per context mode, over the tasks of all ranks, the same on every rank.

    The same checkpoint and seed give the same entries, whatever the number of ranks: a task's seed
    does not depend on the rank.
    """
    chosen = list(tasks if config.tasks is None else tasks[: config.tasks])
    entries: dict[str, dict[str, Any]] = {}
    for context in config.contexts:
        own = rollout.collect(
            chosen[rank::world_size],
            1,
            evaluation_settings(config, context, max_observation_tokens),
            Sampling(temperature=config.temperature),
            seed_parts=(seed, "evaluation", context),
            progress=progress,
        )
        summaries = [row for part in gather_objects([_summary(t) for t in own]) for row in part]
        order = {task.id: index for index, task in enumerate(chosen)}
        summaries.sort(key=lambda row: order[row["task"]])
        entries[context] = evaluation_entry(summaries, config.bootstrap_samples, seed)
    return entries


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    """What the table needs of one trajectory."""
    return {
        "task": trajectory.task.id,
        "objectives": len(trajectory.task.objectives),
        "rounds": len(trajectory.rounds),
        "answered": float(trajectory.ending == "answered"),
        "ending": str(trajectory.ending),
        "format_valid": float(bool(trajectory.format_valid)),
        "tool_calls": float(trajectory.tool_calls),
        "tool_failures": float(trajectory.tool_failures),
        "tool_errors": float(trajectory.tool_errors),
        "total_tokens": float(trajectory.total_tokens),
        "peak_tokens": float(trajectory.peak_tokens),
        **trajectory.metrics,
    }


def evaluation_entry(
    summaries: Sequence[Mapping[str, Any]], bootstrap_samples: int, seed: int
) -> dict[str, Any]:
    """The figures of one task set and context mode.

    ``exact_match``, ``f1`` and ``f1_set`` are means over objectives × 100, the ``_sum`` figures
    are MEM1's sums over objectives (mean per task), shares lie in [0, 1], tokens are means per
    task. ``ci95`` holds bootstrap intervals over tasks. ``by_objectives`` and ``by_rounds`` repeat
    the figures for parts of the tasks.
    """
    if not summaries:
        raise ValueError("an evaluation without tasks has no figures")
    entry = _figures(summaries)
    entry["endings"] = _counts(row["ending"] for row in summaries)
    if bootstrap_samples:
        entry["ci95"] = {
            key: _bootstrap([100.0 * row[key] for row in summaries], bootstrap_samples, seed)
            for key in _PERCENT
        }
    for name, field in (("by_objectives", "objectives"), ("by_rounds", "rounds")):
        values = sorted({row[field] for row in summaries})
        entry[name] = {
            str(value): _figures([row for row in summaries if row[field] == value])
            for value in values
        }
    return entry


def _figures(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return sum(float(row[key]) for row in summaries) / len(summaries)

    figures: dict[str, Any] = {"tasks": len(summaries)}
    figures.update({key: 100.0 * mean(key) for key in _PERCENT})
    for key in (
        *(f"{name}_sum" for name in _PERCENT),
        "format_valid",
        "answered",
        "rounds",
        "tool_calls",
        "tool_failures",
        "tool_errors",
        "total_tokens",
        "peak_tokens",
    ):
        figures[key] = mean(key)
    return figures


def _counts(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))


def _bootstrap(values: Sequence[float], samples: int, seed: int) -> list[float]:
    """The 2.5 and 97.5 percentiles of the mean over resampled tasks."""
    rng = random.Random(f"bootstrap/{seed}")
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(samples))
    return [means[int(0.025 * samples)], means[min(int(0.975 * samples), samples - 1)]]


def flat_entry(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The first context mode's figures (memory, by default) with all modes under ``contexts``."""
    first = next(iter(entries))
    return {"context": first, **entries[first], "contexts": dict(entries)}


def wide_console() -> Console:
    """A console on which the table keeps its columns, also where there is no terminal."""
    return Console(width=max(Console().width, _TABLE_WIDTH))


def print_table(results: Mapping[str, Mapping[str, Mapping[str, Any]]], console: Console) -> None:
    """One line per stage or model (outer key) and context mode (inner key)."""
    table = Table(title="Held-out evaluation")
    columns = (
        ("EM", "exact_match", "{:.1f}"),
        ("F1", "f1", "{:.1f}"),
        ("set F1", "f1_set", "{:.1f}"),
        ("format", "format_valid", "{:.2f}"),
        ("answered", "answered", "{:.2f}"),
        ("rounds", "rounds", "{:.1f}"),
        ("tools", "tool_calls", "{:.1f}"),
        ("failed", "tool_failures", "{:.1f}"),
        ("tokens", "total_tokens", "{:.0f}"),
        ("peak", "peak_tokens", "{:.0f}"),
    )
    table.add_column("")
    table.add_column("context")
    for title, _, _ in columns:
        table.add_column(title, justify="right")
    for name, entries in results.items():
        for context, entry in entries.items():
            table.add_row(name, context, *(form.format(entry[key]) for _, key, form in columns))
    console.print(table)
