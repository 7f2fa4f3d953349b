"""The generated world's oracle as a teacher: it knows each question's chain of facts.

It follows the chain with the real tools, as in the demonstrations of the world
(``mempo/demonstrations/world.py``), and its memories lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mempo.collect.scripted import ScriptedTeacher
from mempo.config import ScoringConfig
from mempo.demonstrations.trajectory_shapes import unwrapped
from mempo.demonstrations.world import MemoryForm, learn, next_fact, oracle_action, write_memory
from mempo.engine.interface import Messages
from mempo.trajectory import Task
from mempo.world.facts import Fact, world_chains


@dataclass
class _Mind:
    """What the oracle knows and did in one trajectory."""

    chains: Sequence[Sequence[Fact]]
    known: frozenset[Fact] = frozenset()
    searched: frozenset[Fact] = frozenset()
    rounds: int = 0


class OracleTeacher(ScriptedTeacher):
    """``tasks``: by the key of their attempt."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        encode: Callable[[str], list[int]],
        scoring: ScoringConfig,
        form: MemoryForm,
    ) -> None:
        super().__init__(encode)
        self._minds = {key: _Mind(world_chains(one.metadata)) for key, one in tasks.items()}
        self._scoring, self._form = scoring, form

    def write_round(self, key: str, messages: Messages) -> str:
        """The memory of all that was seen, and the next step of the first open chain."""
        mind = self._minds[key]
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
