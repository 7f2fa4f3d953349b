"""What the rollout loop and an engine say to each other (specification section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Messages = list[dict[str, str]]
"""A conversation: ``role`` and ``content`` of each message."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class Generation:
    """What the engine returns for one request: sampled ids, the log-probability of each under the
    engine (NaN where a server does not tell it), and why it ended (``stop``: a stop text or the
    end-of-turn mark; ``length``)."""

    key: str
    ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]


class GenerationEngine(Protocol):
    """What the loop asks of an engine. ``mempo.engine.vllm_engine.Engine`` is the real one."""

    max_model_len: int

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None: ...

    def step(self) -> list[Generation]: ...

    def has_unfinished(self) -> bool: ...

    def abort_all(self) -> None: ...


@runtime_checkable
class ChatEngine(Protocol):
    """A ``GenerationEngine`` that is asked with messages in place of ids, since a server lays them
    out itself. Its rounds cannot be begun for it: nothing is prefilled."""

    def submit_messages(
        self, key: str, messages: Messages, max_tokens: int, seed: int, sampling: Sampling
    ) -> None: ...
