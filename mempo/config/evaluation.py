"""Held-out evaluation and the ways of showing a round its past (``conf/evaluation/``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.contexts import (
    CONTEXTS,
    ContextName,
    RetrievalMemoryConfig,
    SummaryConfig,
    writes_memory,
)
from mempo.config.paths import SettingPath
from mempo.config.rollout import ContextConfig
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class ContextMode:
    """One way of showing a round what came before it (specification section 9). What is ``None`` is
    as in the settings of ``evaluation`` with the same names (``newest`` and ``keep_steps``: of its
    ``memory_context``)."""

    context: ContextName = "memory"
    newest: Literal["full", "short"] | None = None
    keep_steps: int | Literal["all"] | None = None
    prefill_memory: bool | None = None
    summary: SummaryConfig | None = None
    retrieval_memory: RetrievalMemoryConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> ContextMode:
        if isinstance(self.keep_steps, int) and self.keep_steps < 1:
            raise ValueError("keep_steps must be at least 1, or all")
        if self.context == "full" and (self.newest, self.keep_steps) != (None, None):
            raise ValueError(
                "newest and keep_steps have no meaning with context: full, which shows everything: "
                "leave them out"
            )
        if self.context != "memory" and (self.newest, self.keep_steps) != (None, None):
            raise ValueError(
                f"newest and keep_steps belong to context: memory, and not to {self.context}: "
                "leave them out"
            )
        if self.prefill_memory is not None and not writes_memory(self.context):
            raise ValueError(
                f"prefill_memory has no meaning with context: {self.context}, which has no "
                "memory: leave it out"
            )
        for name in ("summary", "retrieval_memory"):
            if getattr(self, name) is not None and self.context != name:
                raise ValueError(f"{name} belongs to context: {name}, not to {self.context}")
        return self


_GIVEN_MODES: dict[str, ContextMode] = {name: ContextMode(name) for name in CONTEXTS}


@dataclass(frozen=True, config=STRICT)
class EvaluationConfig:
    """Held-out evaluation, before and after training and in ``evaluate.py`` (section 9).

    ``contexts`` are names of ``mempo.config.contexts`` and of ``modes``. The last three settings
    are read by ``evaluate.py`` only: one model or several (names of one's own by a mapping from
    name to model), and numbers of objectives (``None``: ``data.objectives``).
    """

    enabled: bool = True
    tasks: int | None = Field(default=64, ge=1)
    contexts: tuple[str, ...] = ("memory", "full")
    memory_context: ContextConfig = field(default_factory=ContextConfig)
    summary: SummaryConfig = field(default_factory=SummaryConfig)
    retrieval_memory: RetrievalMemoryConfig = field(default_factory=RetrievalMemoryConfig)
    prefill_memory: bool = True
    modes: dict[str, ContextMode] = field(default_factory=dict)
    max_rounds: int = Field(default=64, ge=1)
    max_response_tokens: int = Field(default=65536, ge=1)
    max_round_tokens: int = Field(default=1024, ge=1)
    max_observation_tokens: int = Field(default=1024, ge=16)
    temperature: float = Field(default=0.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    reuse_repeats: bool = True
    bootstrap_samples: int = Field(default=1000, ge=0)
    model_path: SettingPath | None = None
    models: SettingPath | tuple[SettingPath, ...] | dict[str, SettingPath] | None = None
    objectives: tuple[Annotated[int, Field(ge=1)], ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> EvaluationConfig:
        for setting in ("contexts", "models", "objectives"):
            value = getattr(self, setting)
            if value is not None and not value:
                raise ValueError(f"evaluation.{setting} is empty: name at least one")
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError(
                    f"evaluation.{setting} names {_repeated(value)!r} twice: name it once"
                )
        for name in self.modes:
            if name in _GIVEN_MODES or "/" in name:
                raise ValueError(
                    f"evaluation.modes.{name}: {', '.join(_GIVEN_MODES)} are there already, and a "
                    "name holds no slash: choose another name"
                )
        for name in self.contexts:
            if name not in _GIVEN_MODES and name not in self.modes:
                others = [repr(one) for one in _GIVEN_MODES if one not in ("memory", "full")]
                known = f"one of evaluation.modes ({', '.join(self.modes) or 'there are none'})"
                raise ValueError(
                    f"evaluation.contexts: {name!r} is not 'memory' or 'full', nor a baseline "
                    f"({', '.join(others)}), nor {known}"
                )
        if self.model_path is not None and self.models is not None:
            raise ValueError(
                "evaluation.model_path and evaluation.models both name models: give one of them"
            )
        return self

    @property
    def known_contexts(self) -> tuple[str, ...]:
        """Everything that ``contexts`` may name."""
        return tuple(dict.fromkeys(("memory", "full", *self.modes, *_GIVEN_MODES)))

    @property
    def ways(self) -> tuple[ContextName, ...]:
        """The ways of showing the past that ``contexts`` come down to."""
        return tuple(dict.fromkeys(self.mode(name).context for name in self.contexts))

    def mode(self, name: str) -> ContextMode:
        """What one of ``contexts`` means."""
        return _GIVEN_MODES.get(name) or self.modes[name]


def _repeated(values: Sequence[Any]) -> Any:
    return next(value for index, value in enumerate(values) if value in values[:index])
