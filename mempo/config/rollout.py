"""How trajectories are collected (``conf/rollout/``)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.contexts import ContextName, RetrievalMemoryConfig, writes_memory
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class ContextConfig:
    """What a round sees in memory mode (specification section 9)."""

    newest: Literal["full", "short"] = "full"
    keep_steps: int | Literal["all"] = 1

    @model_validator(mode="after")
    def _check(self) -> ContextConfig:
        if self.keep_steps != "all" and self.keep_steps < 1:
            raise ValueError("keep_steps must be at least 1, or all")
        return self


@dataclass(frozen=True, config=STRICT)
class CurriculumConfig:
    """Which training tasks come when (``mempo/training/curriculum.py``)."""

    enabled: bool = False
    grow_at: float = Field(default=0.8, gt=0.0)
    window: int = Field(default=8, ge=1)
    mixed_weight: float = Field(default=4.0, gt=0.0)
    settled_weight: float = Field(default=0.25, gt=0.0)


@dataclass(frozen=True, config=STRICT)
class RolloutConfig:
    """How trajectories are collected in training (specification section 4)."""

    group_size: int = 16
    tasks_per_epoch: int = Field(default=8, ge=1)
    context: ContextName = "full"
    memory_context: ContextConfig = field(default_factory=ContextConfig)
    retrieval_memory: RetrievalMemoryConfig = field(default_factory=RetrievalMemoryConfig)
    max_rounds: int = Field(default=8, ge=1)
    max_response_tokens: int = Field(default=4096, ge=1)
    max_round_tokens: int = Field(default=1024, ge=1)
    max_observation_tokens: int = Field(default=1024, ge=16)
    prefill_memory: bool = False
    on_no_action: Literal["stop", "feedback"] = "stop"
    overlap: bool = False
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    temperature: float = Field(default=1.0, gt=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)

    @model_validator(mode="after")
    def _check(self) -> RolloutConfig:
        if self.group_size < 2:
            raise ValueError(
                f"rollout.group_size={self.group_size}: advantages are normalized within a task's "
                "group, so a group needs at least 2 trajectories (the method uses 16)"
            )
        if self.context == "summary":
            raise ValueError(
                "rollout.context=summary is for evaluation alone (evaluation.contexts=[summary]): "
                "its summaries come from a model that is not trained to write them, and no reward "
                "reaches them; train with another context"
            )
        if self.prefill_memory and not writes_memory(self.context):
            raise ValueError(
                f"rollout.prefill_memory=true begins rounds with <mem>, and rollout.context="
                f"{self.context} has no memory: set rollout.prefill_memory=false"
            )
        for setting, value, off in (("top_p", self.top_p, 1.0), ("top_k", self.top_k, -1)):
            if value not in (off, 0):
                raise ValueError(
                    f"rollout.{setting}={value:g}: the engine's log-probabilities would be those "
                    "of the tokens that are left, and the trainer's are of all tokens, so that "
                    f"ratios and mismatch are wrong: leave it at {off:g} "
                    f"(evaluation.{setting} may be set)"
                )
        return self
