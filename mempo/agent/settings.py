"""The limits and the context of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mempo.config.contexts import ContextName, RetrievalMemoryConfig, SummaryConfig


@dataclass(frozen=True)
class AgentSettings:
    """Limits and context of a rollout; see ``RolloutConfig`` and ``EvaluationConfig``.

    ``max_response_tokens`` counts policy and observation tokens together. ``keep_steps`` and
    ``newest`` apply in memory mode (specification section 9), ``summary`` and ``retrieval_memory``
    in the modes of their names; ``prefill_memory`` where there is a memory. With
    ``reuse_repeats`` a context that comes back is not sampled again where sampling is greedy.
    """

    context: ContextName
    max_rounds: int
    max_response_tokens: int
    max_round_tokens: int
    max_observation_tokens: int
    prefill_memory: bool = False
    on_no_action: Literal["stop", "feedback"] = "stop"
    newest: Literal["full", "short"] = "full"
    keep_steps: int | Literal["all"] = 1
    reuse_repeats: bool = False
    summary: SummaryConfig = field(default_factory=SummaryConfig)
    retrieval_memory: RetrievalMemoryConfig = field(default_factory=RetrievalMemoryConfig)
