"""What a finished trajectory is worth (``conf/reward/``; specification section 5)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.paths import SettingPath
from mempo.config.strict import STRICT

BUILT_IN: Final = ("exact_match", "f1", "f1_set")
"""Answer metrics of ``mempo.learning.rewards``."""

JUDGE: Final = "judge"

_IMPORT_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_URL: Final = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")


@dataclass(frozen=True, config=STRICT)
class JudgeConfig:
    """A language model that judges answers, on a server that speaks ``/chat/completions``. Times
    are in seconds, of single requests. The key itself is no setting: it would reach files."""

    url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    prompt: SettingPath | None = None
    temperature: float | None = Field(default=0.0, ge=0.0)
    max_tokens: int | None = Field(default=1024, ge=1)
    request: dict[str, Any] | None = None
    timeout_s: float = Field(default=60.0, gt=0.0)
    retries: int = Field(default=4, ge=0)
    max_failure_rate: float = Field(default=0.05, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _check(self) -> JudgeConfig:
        if self.url is not None:
            if not _URL.fullmatch(self.url):
                raise ValueError(
                    f"reward.judge.url={self.url} is no address of a server: write "
                    "http://<host>:<port>/v1"
                )
            if "@" in self.url:
                raise ValueError(
                    "reward.judge.url holds a password, which would stand in the run's files: give "
                    "it in the environment variable that reward.judge.api_key_env names"
                )
            if self.url.rstrip("/").endswith("/completions"):
                raise ValueError(
                    f"reward.judge.url={self.url} names one of the server's paths: leave out what "
                    "follows /v1"
                )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError(
                "reward.judge.api_key_env is the name of an environment variable, such as "
                "OPENAI_API_KEY, never the key itself: it would stand in the run's files"
            )
        return self


@dataclass(frozen=True, config=STRICT)
class RewardConfig:
    """The outcome reward. ``metric`` and the names of ``terms`` are ``BUILT_IN``, ``judge``, or
    import paths of functions; ``terms`` gives each its weight and, where it is given, stands for
    ``metric``."""

    metric: str = "exact_match"
    terms: dict[str, float] | None = None
    workers: int = Field(default=8, ge=1, le=1000)
    timeout_s: float = Field(default=60.0, gt=0.0)
    judge: JudgeConfig = field(default_factory=JudgeConfig)

    @property
    def weights(self) -> Mapping[str, float]:
        """What is computed, with its weight in the reward; a weight of 0 measures only."""
        return {self.metric: 1.0} if self.terms is None else self.terms

    @property
    def functions(self) -> tuple[str, ...]:
        """The import paths among ``weights``."""
        return tuple(name for name in self.weights if name not in (*BUILT_IN, JUDGE))

    @property
    def judged(self) -> bool:
        """Whether a language model is asked."""
        return JUDGE in self.weights

    @model_validator(mode="after")
    def _check(self) -> RewardConfig:
        _check_name("reward.metric", self.metric)
        if self.terms is not None:
            if not self.terms:
                raise ValueError("reward.terms is empty: name at least one, or set it to null")
            for name in self.terms:
                _check_name("reward.terms", name)
            if self.metric != "exact_match" and self.metric not in self.terms:
                raise ValueError(
                    f"reward.metric={self.metric} is not among reward.terms, which stand for it: "
                    f"add it there with its weight, or leave one of the two out"
                )
        if self.judged:
            for name, example in (("url", "http://<host>:<port>/v1"), ("model", "<its name>")):
                if getattr(self.judge, name) is None:
                    raise ValueError(
                        f"reward.judge.{name} is empty: the judge needs reward.judge.{name}="
                        f"{example}"
                    )
        return self


def _check_name(setting: str, name: str) -> None:
    if name in (*BUILT_IN, JUDGE) or _IMPORT_PATH.fullmatch(name):
        return
    close = difflib.get_close_matches(name, (*BUILT_IN, JUDGE), n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(
        f"{setting}: {name!r} is none of {', '.join((*BUILT_IN, JUDGE))}, nor a function of your "
        f"own, which is written as module.name, my_rewards.fuzzy{meant}"
    )
