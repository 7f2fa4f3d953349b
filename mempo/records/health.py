"""What a person would notice in a run's curves, as pure functions of its records.

A record is one line of ``metrics.jsonl``. Each check looks at the newest ``window`` epochs, some at
the first ones too, and gives a sentence or nothing. ``docs/metrics.md`` says what to do about each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mempo.config import HealthConfig

Record = Mapping[str, float]


def findings(records: Sequence[Record], settings: HealthConfig) -> dict[str, str]:
    """The sentence of each check that has one, by the check's name; ``records`` in the order of
    their epochs. Nothing before ``settings.window`` epochs."""
    if len(records) < settings.window:
        return {}
    found = {name: check(records, settings) for name, check in CHECKS.items()}
    return {name: sentence for name, sentence in found.items() if sentence is not None}


def memory_reward_flat(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """Every memory reward is about 0, so that there is nothing to prefer. A mean near 0 alone is
    no fault: good and bad memories cancel out."""
    limit = settings.memory_reward_flat
    means = _recent("memory/reward_mean", records, settings)
    deviations = _recent("memory/reward_std", records, settings)
    if means is None or deviations is None:
        return None
    if max(map(abs, means)) > limit or max(deviations) > limit:
        return None
    compared, before = "with the history", "memory/p_full_mean"
    if "memory/p_previous_mean" in records[-1]:  # scoring.baseline=previous
        compared, before = "with the one before it", "memory/p_previous_mean"
    return (
        f"memory rewards have been flat near zero for {settings.window} epochs (mean "
        f"{_mean(means):+.2g}, standard deviation {_mean(deviations):.2g}): P(answer) is the same "
        f"with the memory alone as {compared}, so memories are not being taught; compare "
        f"{before} and memory/p_mem_mean"
    )


def memory_length(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """Memories shrink to nothing or grow without bound, against the first epochs that had any."""
    lengths = [record.get("memory/tokens_mean", 0.0) for record in records]
    begun = next((index for index, length in enumerate(lengths) if length > 0), len(lengths))
    lengths, window = lengths[begun:], settings.window
    if len(lengths) < 2 * window:
        return None
    before, now = _mean(lengths[:window]), _mean(lengths[-window:])
    factor = settings.memory_tokens_factor
    if before / factor < now < before * factor:
        return None
    word, remedy = (
        ("collapsing", "look at what is left of them; a confidence filter invites this")
        if now < before
        else ("exploding", "memory.length_penalty makes brevity worth something")
    )
    return (
        f"memory length is {word}: {now:.0f} tokens on average over the last {window} epochs, "
        f"{before:.0f} over the first {window} ({remedy})"
    )


def constant_groups(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """No group tells a better trajectory from a worse one."""
    shares = _recent("groups/constant_share", records, settings)
    if shares is None or min(shares) < settings.constant_groups:
        return None
    every = "all groups were" if min(shares) == 1.0 else f"{_mean(shares):.0%} of the groups were"
    reward = _mean(_recent("reward/mean", records, settings) or [0.0])
    return (
        f"{every} constant for {settings.window} epochs (mean reward {reward:.2f}): the outcome "
        "teaches nothing; choose easier or harder tasks, or a larger rollout.group_size"
    )


def format_valid(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """The model forgets the round protocol."""
    key, window = "reward/format_valid", settings.window
    shares = [record[key] for record in records if key in record]
    if len(shares) < 2 * window:
        return None
    best = max(_mean(shares[end - window : end]) for end in range(window, len(shares)))
    now = _mean(shares[-window:])
    if best - now < settings.format_valid_fall:
        return None
    return (
        f"format validity is falling: {now:.0%} of the trajectories over the last {window} epochs, "
        f"{best:.0%} at its best; lower optimizer.learning_rate, and read trajectories.jsonl for "
        "the rules that break"
    )


def mismatch(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """Engine and trainer drift apart."""
    key, window = "engine/mismatch_mean", settings.window
    values = [record[key] for record in records if key in record]
    if len(values) < 2 * window:
        return None
    before, now = _mean(values[:window]), _mean(values[-window:])
    if now < settings.mismatch_floor or now < settings.mismatch_factor * before:
        return None
    return (
        f"the mismatch of engine and trainer is rising: {now:.2g} nats per token over the last "
        f"{window} epochs, {before:.2g} over the first {window}; see that the weights reach the "
        "engine, or set loss.importance_cap=2"
    )


def ending(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """Most trajectories end alike, and not with an answer."""
    keys = {key for record in records for key in record if key.startswith("ending/")}
    for key in sorted(keys - {"ending/answered"}):
        shares = _recent(key, records, settings)
        if shares is not None and _mean(shares) >= settings.ending_share:
            name = key.removeprefix("ending/")
            return (
                f"one ending dominates: {_mean(shares):.0%} of the trajectories of the last "
                f"{settings.window} epochs ended with {name}; {_REMEDIES.get(name, 'read some')}"
            )
    return None


def confidence_filter(records: Sequence[Record], settings: HealthConfig) -> str | None:
    """The confidence filter drops every token, so that P says nothing about the answer."""
    for context, words in (("mem", "after the memory"), ("full", "after the history")):
        shares = _recent(f"filter/none_kept_{context}", records, settings)
        if shares is not None and _mean(shares) >= settings.filter_none:
            return (
                f"the confidence filter keeps nothing: {words}, no answer token passed "
                f"scoring.threshold in {_mean(shares):.0%} of the scored rounds of the last "
                f"{settings.window} epochs; lower it, or set scoring.threshold=null"
            )
    return None


CHECKS: Final[Mapping[str, Callable[[Sequence[Record], HealthConfig], str | None]]] = {
    "memory_reward_flat": memory_reward_flat,
    "memory_length": memory_length,
    "constant_groups": constant_groups,
    "format_valid": format_valid,
    "mismatch": mismatch,
    "ending": ending,
    "confidence_filter": confidence_filter,
}

_REMEDIES: Final = {
    "max_rounds": "raise rollout.max_rounds, or look at what keeps them from answering",
    "response_budget": "raise rollout.max_response_tokens, or shorten the observations",
    "context_budget": "raise engine.max_model_len, or lower rollout.max_observation_tokens",
    "no_action": "the model stops without an action: read some, and try rollout.on_no_action="
    "feedback",
}


def _recent(key: str, records: Sequence[Record], settings: HealthConfig) -> list[float] | None:
    """The key's values in the newest epochs; ``None`` where one of these has none."""
    values = [record.get(key) for record in records[-settings.window :]]
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
