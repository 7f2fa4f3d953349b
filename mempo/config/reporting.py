"""What a run tells about itself: wandb, health and the optional callbacks."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class WandbConfig:
    """Weights & Biases. ``mode: auto`` is online where the person is logged in, else offline.
    ``project`` and ``name`` default to wandb's own variables of the environment."""

    enabled: bool = True
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str | None = None
    name: str | None = None
    log_every_epochs: int = Field(default=1, ge=1)


@dataclass(frozen=True, config=STRICT)
class HealthConfig:
    """When a run is said to be ill (``mempo/records/health.py``). Means are over ``window`` epochs;
    shares lie in [0, 1]."""

    enabled: bool = True
    window: int = Field(default=8, ge=1)
    memory_reward_flat: float = Field(default=0.005, ge=0.0)
    memory_tokens_factor: float = Field(default=3.0, gt=1.0)
    constant_groups: float = Field(default=1.0, ge=0.0, le=1.0)
    format_valid_fall: float = Field(default=0.2, gt=0.0, le=1.0)
    mismatch_factor: float = Field(default=3.0, gt=1.0)
    mismatch_floor: float = Field(default=1e-3, ge=0.0)
    ending_share: float = Field(default=0.8, gt=0.0, le=1.0)
    filter_none: float = Field(default=0.9, gt=0.0, le=1.0)


@dataclass(frozen=True, config=STRICT)
class CallbacksConfig:
    """Which optional callbacks run. The memory reward itself always does.

    ``more`` holds callbacks of one's own by name, each a ``_target_`` with its arguments, and
    ``built_by`` names the function that makes all of a run's callbacks (docs/callbacks.md).
    """

    built_by: str = "callbacks.build.stage_callbacks"
    more: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory_distributions: bool = True
    sampled_trajectories: int = Field(default=4, ge=0)
    progress_bars: bool = True
    health: HealthConfig = field(default_factory=HealthConfig)
