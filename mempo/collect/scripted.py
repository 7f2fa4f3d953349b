"""A teacher that is a program and not a model: what all of them do as an engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from mempo.engine.interface import Generation, Messages, Sampling


class ScriptedTeacher:
    """A ``ChatEngine`` without a model. ``encode`` gives a text's ids; a round longer than it may
    be is cut, as a model's is."""

    max_model_len = 1_000_000

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._said: list[Generation] = []

    def write_round(self, key: str, messages: Messages) -> str:
        """The next round of the attempt ``key``, whose context is ``messages``."""
        raise NotImplementedError

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Not for a program, which reads messages."""
        raise TypeError("a teacher without a model reads messages")

    def submit_messages(
        self, key: str, messages: Messages, max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Writes the next round of a trajectory."""
        ids = self._encode(self.write_round(key, messages))
        whole = len(ids) <= max_tokens
        ids = ids[:max_tokens]
        reason: Literal["stop", "length"] = "stop" if whole else "length"
        self._said.append(Generation(key, ids, [math.nan] * len(ids), reason))

    def step(self) -> list[Generation]:
        """All rounds that were asked for."""
        said, self._said = self._said, []
        return said

    def has_unfinished(self) -> bool:
        """True while rounds wait to be taken."""
        return bool(self._said)

    def abort_all(self) -> None:
        """Drops them."""
        self._said = []

    def close(self) -> None:
        """Nothing to release."""
