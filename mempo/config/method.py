"""The method: its variant, scoring, advantages and loss (``conf/algorithm/``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class AlgorithmConfig:
    """The named variant (``conf/algorithm/``)."""

    name: str


@dataclass(frozen=True, config=STRICT)
class ScoringConfig:
    """The memory reward (specification section 6). ``reward`` is the scale on which a memory's
    context is compared with its ``baseline``. ``threshold`` is a probability. ``history`` is what
    P_full stands after in memory-context rollouts."""

    reward: Literal["probability", "log_probability"] = "probability"
    baseline: Literal["history", "previous"] = "history"

    threshold: float | None = Field(default=None, gt=0.0, lt=1.0)
    empty: Literal["one", "unfiltered"] = "unfiltered"
    mask: Literal["separate", "full"] = "separate"
    gold: Literal["first", "best"] = "first"
    history: Literal["visible", "trajectory"] = "visible"
    method: Literal["tree", "padded"] = "tree"
    enabled: bool = True
    filler: str = "I can answer now."
    answer_template: str = "\n<think>{filler}</think>\n<answer>\n{gold}\n</answer>"
    batch_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> ScoringConfig:
        if self.answer_template.count("{gold}") != 1:
            raise ValueError("scoring.answer_template must contain {gold} exactly once")
        for name, value, usual in (
            ("mask", "full", "separate"),
            ("history", "trajectory", "visible"),
        ):
            if self.baseline == "previous" and getattr(self, name) == value:
                raise ValueError(
                    f"scoring.{name}={value} is about P_full, which scoring.baseline=previous does "
                    f"not compute: set scoring.{name}={usual}, or scoring.baseline=history"
                )
        return self


@dataclass(frozen=True, config=STRICT)
class OutcomeConfig:
    """The outcome advantage (specification section 7)."""

    normalize_std: bool = True
    std_floor: float = Field(default=0.0, ge=0.0)


@dataclass(frozen=True, config=STRICT)
class MemoryConfig:
    """The memory advantage (specification section 7). ``weight`` 0 turns scoring into a
    measurement without effect on training."""

    weight: float = Field(default=1.0, ge=0.0)
    pool: Literal["group", "round"] = "group"
    std_floor: float = Field(default=1e-3, ge=0.0)
    normalize_std: bool = True
    only_if_outcome_nonnegative: bool = False
    length_penalty: float = Field(default=0.0, ge=0.0)
    gamma: float = Field(default=0.0, ge=0.0, le=1.0)


@dataclass(frozen=True, config=STRICT)
class LossConfig:
    """PPO with dual clip (specification section 8)."""

    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    clip_high: float = Field(default=0.2, gt=0.0)
    dual_clip: float = Field(default=3.0, gt=1.0)
    log_ratio_clamp: float = Field(default=20.0, gt=0.0)
    aggregation: Literal["token_mean", "trajectory_mean"] = "token_mean"
    kl_coefficient: float = Field(default=0.0, ge=0.0)
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0.0)
    weight_grows_with_rounds: bool = False
    importance_cap: float | None = Field(default=None, gt=0.0)
