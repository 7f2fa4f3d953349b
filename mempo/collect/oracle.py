"""The generated world's oracle as a teacher: an engine that knows each question's chain of facts.

It follows the chain with the real tools, as in the demonstrations of the world
(``mempo/demonstrations/world.py``), and its memories lose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mempo.config import ScoringConfig
from mempo.demonstrations.trajectory_shapes import unwrapped
from mempo.demonstrations.world import MemoryForm, learn, next_fact, oracle_action, write_memory
from mempo.engine.interface import Generation, Messages, Sampling
from mempo.trajectory import Task
from mempo.world.facts import Fact, world_chains


@dataclass
class _Mind:
    """What the oracle knows and did in one trajectory."""

    chains: Sequence[Sequence[Fact]]
    known: frozenset[Fact] = frozenset()
    searched: frozenset[Fact] = frozenset()
    rounds: int = 0


class OracleEngine:
    """A ``ChatEngine`` without a model. ``tasks``: by the key of their attempt."""

    max_model_len = 1_000_000

    def __init__(
        self,
        tasks: Mapping[str, Task],
        encode: Callable[[str], list[int]],
        scoring: ScoringConfig,
        form: MemoryForm,
    ) -> None:
        self._minds = {key: _Mind(world_chains(one.metadata)) for key, one in tasks.items()}
        self._encode, self._scoring, self._form = encode, scoring, form
        self._said: list[Generation] = []

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Not for the oracle, which reads messages."""
        raise TypeError("the oracle reads messages")

    def submit_messages(
        self, key: str, messages: Messages, max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Writes the next round of a trajectory."""
        ids = self._encode(self._round(self._minds[key], messages))
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

    def _round(self, mind: _Mind, messages: Messages) -> str:
        told = [one["content"] for one in messages if one["role"] == "user"][1:]
        seen = "\n".join(map(unwrapped, told))
        mind.known = learn(mind.chains, mind.known, seen)
        mind.rounds += 1
        memory = write_memory(mind.chains, mind.known, self._form) if mind.rounds > 1 else ""
        wanted = next_fact(mind.chains, mind.known)
        if wanted is None:
            gold = "; ".join(chain[-1].object for chain in mind.chains)
            template = self._scoring.answer_template
            return memory + template.format(filler=self._scoring.filler, gold=gold)
        action, _, text = oracle_action(wanted, wanted in mind.searched)
        if action == "search":
            mind.searched |= {wanted}
        return memory + text
