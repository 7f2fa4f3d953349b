"""Long-horizon evaluation and its figures (specification section 9)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mempo.agent.collection import Attempt, Progress, Watch
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.config import EvaluationConfig
from mempo.config.reward import JUDGE
from mempo.data.sources import named_sources, source_name
from mempo.engine.interface import Sampling
from mempo.judging.names import added_metrics
from mempo.records.trajectory_records import trajectory_record
from mempo.runtime.gather import gather_objects
from mempo.trajectory import Ending, Task

PERCENT: Final = ("exact_match", "f1", "f1_set")
"""Answer metrics: means over the objectives of a task, shown × 100."""


def evaluation_settings(config: EvaluationConfig, context: str) -> AgentSettings:
    """The agent's limits at evaluation, in one of ``evaluation.contexts``.

    ``full`` shows a memory agent its whole history: it still writes memories, prefilled or not.
    The agent without any is ``react``.
    """
    mode, usual = config.mode(context), config.memory_context
    return AgentSettings(
        context=mode.context,
        max_rounds=config.max_rounds,
        max_response_tokens=config.max_response_tokens,
        max_round_tokens=config.max_round_tokens,
        max_observation_tokens=config.max_observation_tokens,
        prefill_memory=(
            config.prefill_memory if mode.prefill_memory is None else mode.prefill_memory
        ),
        newest=mode.newest or usual.newest,
        keep_steps=mode.keep_steps or usual.keep_steps,
        reuse_repeats=config.reuse_repeats,
        summary=mode.summary or config.summary,
        retrieval_memory=mode.retrieval_memory or config.retrieval_memory,
    )


def evaluation_attempt(task: Task, config: EvaluationConfig, context: str, seed: int) -> Attempt:
    """A task's trajectory in one context mode. Its seeds come from ``seed``, the mode's name and
    the task's id, so they depend neither on the other tasks nor on how the tasks are spread over
    processes or calls."""
    settings = evaluation_settings(config, context)
    return Attempt(task, 0, settings, (seed, "evaluation", context))


def evaluation_sampling(config: EvaluationConfig) -> Sampling:
    """How tokens are drawn at evaluation."""
    return Sampling(config.temperature, config.top_p, config.top_k)


def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    config: EvaluationConfig,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """One entry per context mode, over the tasks of all ranks, the same on every rank.

    The same checkpoint and seed give the same entries, whatever the number of ranks.
    """
    chosen = list(tasks[: config.tasks])
    entries: dict[str, dict[str, Any]] = {}
    for context in config.contexts:
        own = rollout.run(
            {
                task.id: evaluation_attempt(task, config, context, seed)
                for task in chosen[rank::world_size]
            },
            evaluation_sampling(config),
            Watch(progress),
        )
        records = [summary(trajectory_record(trajectory)) for trajectory in own]
        summaries = [row for part in gather_objects(records) for row in part]
        order = {task.id: index for index, task in enumerate(chosen)}
        summaries.sort(key=lambda row: order[row["task"]])
        entries[context] = evaluation_entry(summaries, config.bootstrap_samples, seed)
    return entries


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the figures need of a trajectory's record (``trajectory_record``)."""
    return {
        "task": record["task"],
        "source": record.get("source") or "",
        "objectives": len(record["golds"]),
        "rounds": len(record["rounds"]),
        "answered": float(record["ending"] == Ending.ANSWERED),
        "ending": record["ending"],
        "format_valid": float(bool(record["format_valid"])),
        "tool_calls": float(record["tool_calls"]),
        "tool_failures": float(record["tool_failures"]),
        "tool_errors": float(record["tool_errors"]),
        "repeated_rounds": float(record["repeated_rounds"]),
        "total_tokens": float(record["total_tokens"]),
        "peak_tokens": float(record["peak_tokens"]),
        **record["metrics"],
    }


def evaluation_entry(
    summaries: Sequence[Mapping[str, Any]], bootstrap_samples: int, seed: int
) -> dict[str, Any]:
    """The figures of one task set and context mode.

    ``exact_match``, ``f1`` and ``f1_set`` are means over objectives × 100, the ``_sum`` figures
    are sums over objectives (mean per task), shares lie in [0, 1], tokens are means per
    task. What a reward adds (``added_metrics``) is a mean over the tasks that have it, a judge's
    share of right answers × 100. ``ci95`` holds bootstrap intervals over tasks. ``by_objectives``
    and ``by_rounds`` repeat the figures for parts of the tasks; where there are several numbers of
    objectives, each has its own ``ci95``. Where tasks have several sources, ``by_source`` has exact
    match and F1 of each (``mempo.data.sources``).
    """
    if not summaries:
        raise ValueError("an evaluation without tasks has no figures")
    entry = _figures(summaries)
    entry["endings"] = _counts(row["ending"] for row in summaries)
    if bootstrap_samples:
        entry["ci95"] = _intervals(summaries, bootstrap_samples, seed)
    if by_source := _by_source(summaries):
        entry["by_source"] = by_source
    for name, field in (("by_objectives", "objectives"), ("by_rounds", "rounds")):
        values = sorted({row[field] for row in summaries})
        entry[name] = {}
        for value in values:
            part = [row for row in summaries if row[field] == value]
            entry[name][str(value)] = _figures(part)
            if bootstrap_samples and field == "objectives" and len(values) > 1:
                entry[name][str(value)]["ci95"] = _intervals(part, bootstrap_samples, seed)
    return entry


def _by_source(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Nothing where all tasks have one source."""
    named = named_sources(row.get("source", "") for row in summaries)
    found: dict[str, dict[str, float]] = {}
    for source in named:
        part = [row for row in summaries if source_name(row["source"], named) == source]
        figures = _figures(part)
        found[source] = {key: figures[key] for key in ("tasks", "exact_match", "f1")}
    return found


def _intervals(
    summaries: Sequence[Mapping[str, Any]], samples: int, seed: int
) -> dict[str, list[float]]:
    return {
        key: bootstrap_interval([100.0 * row[key] for row in summaries], samples, seed)
        for key in percent_metrics(summaries)
    }


def percent_metrics(summaries: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """``PERCENT``, with the judge where it judged every task."""
    judged = all(JUDGE in row for row in summaries)
    return (*PERCENT, JUDGE) if judged else PERCENT


def _figures(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return sum(float(row[key]) for row in summaries) / len(summaries)

    figures: dict[str, Any] = {"tasks": len(summaries)}
    figures.update({key: 100.0 * mean(key) for key in PERCENT})
    for key in (
        *(f"{name}_sum" for name in PERCENT),
        "format_valid",
        "answered",
        "rounds",
        "repeated_rounds",
        "tool_calls",
        "tool_failures",
        "tool_errors",
        "total_tokens",
        "peak_tokens",
    ):
        figures[key] = mean(key)
    for key in added_metrics(key for row in summaries for key in row):
        found = [float(row[key]) for row in summaries if key in row]
        figures[key] = (100.0 if key == JUDGE else 1.0) * sum(found) / len(found)
    return figures


def _counts(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))


def bootstrap_interval(values: Sequence[float], samples: int, seed: int) -> list[float]:
    """The 2.5 and 97.5 percentiles of the mean over resampled tasks."""
    rng = random.Random(f"bootstrap/{seed}")
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(samples))
    return [means[int(0.025 * samples)], means[min(int(0.975 * samples), samples - 1)]]


def flat_entry(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The first context mode's figures (memory, by default) with all modes under ``contexts``."""
    first = next(iter(entries))
    return {"context": first, **entries[first], "contexts": dict(entries)}
