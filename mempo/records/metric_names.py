"""The name of everything that a run logs, in one list.

``docs/metrics.md`` defines each of them. Tests hold the three together: this list, that page, and
what runs log. ``<k>`` stands for the number of a round, ``<source>`` for where tasks come from,
``<function>`` for the import path of a reward of one's own.
"""

from __future__ import annotations

import re
from typing import Final

ALWAYS: Final = (
    "epoch",
    "trainer/global_step",
    "reward/mean",
    "reward/exact_match",
    "reward/exact_match_sum",
    "reward/f1",
    "reward/f1_sum",
    "reward/f1_set",
    "reward/f1_set_sum",
    "reward/format_valid",
    "reward/extra_parts",
    "reward/missing_parts",
    "groups/count",
    "groups/constant_share",
    "ending/answered",
    "ending/max_rounds",
    "ending/response_budget",
    "ending/context_budget",
    "ending/no_action",
    "rollout/trajectories",
    "rollout/rounds_mean",
    "rollout/questions_mean",
    "tokens/total_mean",
    "tokens/peak_mean",
    "tokens/policy_mean",
    "tools/calls",
    "tools/failures",
    "tools/errors",
    "update/loss",
    "update/tokens",
    "update/steps",
    "update/learning_rate",
    "seconds/sync",
    "seconds/rollout",
    "seconds/scoring",
    "seconds/update",
    "peak_gib/sync",
    "peak_gib/rollout",
    "peak_gib/scoring",
    "peak_gib/update",
    "engine/staleness",
)
"""In every line of ``metrics.jsonl``; ``peak_gib`` where the system tells it (GPUs, Linux)."""

WITH_MEMORIES: Final = (
    "memory/written_share",
    "memory/tokens_mean",
    "memory_tokens_by_round/round_<k>",
)
"""In the lines of epochs with a second round, or with a memory."""

WITH_SCORES: Final = (
    "memory/reward_mean",
    "memory/reward_std",
    "memory/p_mem_mean",
    "memory/p_full_mean",
    "memory_reward_by_round/round_<k>",
    "memory_reward_quantiles/round_<k>_p10",
    "memory_reward_quantiles/round_<k>_p50",
    "memory_reward_quantiles/round_<k>_p90",
    "p_mem_quantiles/round_<k>_p10",
    "p_mem_quantiles/round_<k>_p50",
    "p_mem_quantiles/round_<k>_p90",
    "p_full_quantiles/round_<k>_p10",
    "p_full_quantiles/round_<k>_p50",
    "p_full_quantiles/round_<k>_p90",
    "filter/kept_mem",
    "filter/kept_full",
    "filter/none_kept_mem",
    "filter/none_kept_full",
)
"""In the lines of epochs with a scored round (``scoring.enabled``); those of P_full only where it
is computed (``scoring.baseline=history``)."""

WITH_PREVIOUS: Final = ("memory/p_previous_mean",)
"""With scores and ``scoring.baseline=previous``."""

WITH_MEMORY_WEIGHT: Final = ("memory_advantage_by_round/round_<k>",)
"""With scores and ``memory.weight`` above 0."""

WITH_AN_UPDATE: Final = (
    "update/clip_share",
    "update/dual_clip_share",
    "update/ratio_mean",
    "update/entropy_mean",
    "update/gradient_norm",
    "engine/mismatch_mean",
    "engine/mismatch_max",
)
"""In the lines of epochs in which a policy token was trained on."""

WITH_SWITCHES: Final = (
    "update/kl_mean",  # loss.kl_coefficient
    "update/importance_mean",  # loss.importance_cap
)
"""With an update and the setting beside each."""

WITH_SOURCES: Final = (
    "share_by_source/<source>",
    "reward_by_source/<source>",
    "exact_match_by_source/<source>",
    "f1_by_source/<source>",
    "memory_reward_by_source/<source>",  # with scores
)
"""In runs whose training tasks come from several sources (``mempo.data.sources``)."""

WITH_JUDGE: Final = (
    "reward/judge",
    "reward/judge_sum",
    "reward/judge_agreement",
    "reward/judge_failed",
)
"""Where a language model judges answers (``reward=judge``)."""

WITH_FUNCTIONS: Final = ("reward/<function>",)
"""Rewards of one's own, by import path: ``reward/my_rewards.fuzzy``."""

RECORD_KEYS: Final = (
    *ALWAYS,
    *WITH_JUDGE,
    *WITH_FUNCTIONS,
    *WITH_MEMORIES,
    *WITH_SCORES,
    *WITH_PREVIOUS,
    *WITH_MEMORY_WEIGHT,
    *WITH_AN_UPDATE,
    *WITH_SWITCHES,
    *WITH_SOURCES,
)
"""Everything that ``metrics.jsonl`` may hold; the loggers get the same."""

WANDB_KEYS: Final = (
    "memory_reward_histograms/round_<k>",
    "p_mem_histograms/round_<k>",
    "p_full_histograms/round_<k>",
    "samples/trajectories",
)
"""What only wandb gets: histograms and a table."""

_ROUND: Final = re.compile(r"(?<=/round_)\d+")
_SOURCE: Final = re.compile(r"(?<=_by_source/).+")
_FUNCTION: Final = re.compile(r"(?<=^reward/)\w+\..+")


def pattern_of(key: str) -> str:
    """The key as the lists write it, with ``<k>`` in place of the number of a round and
    ``<source>`` in place of a source's name, ``<function>`` in place of a reward's import path."""
    return _FUNCTION.sub("<function>", _ROUND.sub("<k>", _SOURCE.sub("<source>", key)))
