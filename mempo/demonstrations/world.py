"""Demonstrations for the supervised start, by an agent that follows the chains of facts.

Three kinds, because scoring and evaluation show the model more than whole trajectories:

- ``trajectory``: a whole attempt; every round sees the full history (section 4)
- ``round``: one round after the memory context: the last round and its observation (section 9)
- ``answer``: an answer straight after a memory or after a full history (section 6)

The agent runs the real tools. Each known fact is left out of a trained memory with
``sft.drop_probability``, so that the model learns that memories differ and starts with some that
are worth more than others. An agent that loses facts at every round rarely has many of them, so
half of the single rounds follow memories that lost nothing: the model also learns to carry what RL
will teach it to keep.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from mempo.agent.tools import ToolBox, ToolResult
from mempo.config import (
    Config,
    RetrieverConfig,
    ScoringConfig,
    SftConfig,
    WorldConfig,
    writes_memory,
)
from mempo.demonstrations.demonstration import Demonstration, DemonstrationKind, Turn
from mempo.retrieval.rank_bm25 import RankBm25Retriever
from mempo.trajectory import Task
from mempo.world.facts import Fact, world_chains
from mempo.world.relations import RELATION
from mempo.world.world import World, WorldError, generate_world

MemoryForm = Literal["notes", "checklist"]
EMPTY_MEMORY: Final = "nothing yet"
UNKNOWN: Final = "unknown"
ROUNDS_PER_FACT: Final = 3
"""A full history needs no more: a search and a page for each fact."""
MAX_ROUNDS: Final = 12
"""In the memory context, where facts get lost and are looked up again; of many facts, as many as a
full history has."""

_FULL_OBJECTIVES_SHARE: Final = 0.8
_GROWING_SHARE: Final = 0.5
_COMPLETE_SHARE: Final = 0.65
_LOSSLESS_SHARE: Final = 0.5
_ATTEMPTS: Final = 100


@dataclass(frozen=True)
class OracleRound:
    """One round of the oracle. ``known``: the facts that it had when it wrote the round."""

    memory: str
    rest: str
    observation: str | None
    known: frozenset[Fact]
    result: ToolResult | None = None

    @property
    def text(self) -> str:
        """The round as the model writes it."""
        return self.memory + self.rest


class Oracle:
    """Answers tasks of one world by following their chains with the real tools.

    With ``full_history`` it knows every fact it has seen; without, it knows what its last memory
    and the newest observation hold, as in the memory context. ``many``: tasks have many facts.
    """

    def __init__(
        self,
        toolbox: ToolBox,
        scoring: ScoringConfig,
        drop_probability: float,
        many: bool = False,
        form: MemoryForm = "notes",
    ) -> None:
        self._toolbox = toolbox
        self._scoring = scoring
        self._drop_probability = drop_probability
        self._many = many
        self._form: MemoryForm = form

    def run(
        self, task: Task, rng: random.Random, full_history: bool
    ) -> tuple[list[OracleRound], bool]:
        """The rounds and whether the last one answers; see ``ROUNDS_PER_FACT`` and ``MAX_ROUNDS``
        for their limit."""
        chains = world_chains(task.metadata)
        session = self._toolbox.session(task)
        rounds: list[OracleRound] = []
        known: frozenset[Fact] = frozenset()
        searched: frozenset[Fact] = frozenset()
        visible = ""
        limit = 1 + ROUNDS_PER_FACT * sum(map(len, chains))
        if not full_history:
            limit = max(limit, MAX_ROUNDS) if self._many else MAX_ROUNDS
        for number in range(1, limit + 1):
            known = learn(chains, known, visible)
            kept = self.keep(chains, known, rng) if number > 1 else known
            memory = self.memory(chains, kept) if number > 1 else ""
            wanted = next_fact(chains, known)
            if wanted is None:
                answer = "; ".join(chain[-1].object for chain in chains)
                rounds.append(OracleRound(memory, self.answer_text(answer), None, known))
                return rounds, True
            action, argument, rest = oracle_action(wanted, wanted in searched)
            result = session.call(action, argument)
            session.mark_read(result)
            observation = result.text
            rounds.append(OracleRound(memory, rest, observation, known, result))
            searched = (searched if full_history else frozenset()) | (
                frozenset({wanted}) if action == "search" else frozenset()
            )
            known = known if full_history else kept
            visible = f"{visible}\n{observation}" if full_history else observation
        return rounds, False

    def answer_text(self, answer: str) -> str:
        """The thought and the answer, in the form that scoring uses (section 6)."""
        return self._scoring.answer_template.format(filler=self._scoring.filler, gold=answer)

    def memory(self, chains: Sequence[Sequence[Fact]], kept: Iterable[Fact]) -> str:
        """``write_memory`` in the configured form."""
        return write_memory(chains, kept, self._form)

    def keep(
        self, chains: Sequence[Sequence[Fact]], known: frozenset[Fact], rng: random.Random
    ) -> frozenset[Fact]:
        """Each known fact, unless it is dropped."""
        return frozenset(
            fact for fact in _in_order(chains, known) if rng.random() >= self._drop_probability
        )


def learn(
    chains: Sequence[Sequence[Fact]], known: frozenset[Fact], visible: str
) -> frozenset[Fact]:
    """``known`` and what ``visible`` adds; a fact counts once the facts before it are known."""
    learnt = set(known)
    for chain in chains:
        for fact in chain:
            if fact not in learnt:
                if not fact.is_told_in(visible):
                    break
                learnt.add(fact)
    return frozenset(learnt)


def next_fact(chains: Sequence[Sequence[Fact]], known: frozenset[Fact]) -> Fact | None:
    """The first missing fact of the first incomplete objective, ``None`` when all are complete."""
    return next((fact for chain in chains for fact in chain if fact not in known), None)


def oracle_action(wanted: Fact, searched: bool) -> tuple[str, str, str]:
    """Action, argument and the text of both with their thought: a search, or the page where search
    does not tell the fact."""
    relation = RELATION[wanted.relation]
    action, argument = "search", relation.query(wanted.subject)
    if wanted.on_page or searched:
        action, argument = "access", wanted.subject
    thought = f"<think>Need {relation.noun}.</think>"
    return action, argument, f"{thought}<{action}> {argument}</{action}>"


def write_memory(
    chains: Sequence[Sequence[Fact]], kept: Iterable[Fact], form: MemoryForm = "notes"
) -> str:
    """The memory's text with its tags: the kept facts in the order of the chains, or a checklist of
    all chains."""
    known = frozenset(kept)
    if form == "checklist":
        return f"<mem> {' '.join(_checklist_entry(chain, known) for chain in chains)}</mem>"
    notes = [
        RELATION[fact.relation].note(fact.subject, fact.object) for fact in _in_order(chains, known)
    ]
    return f"<mem> {' '.join(notes) or EMPTY_MEMORY}</mem>"


def _checklist_entry(chain: Sequence[Fact], known: frozenset[Fact]) -> str:
    """ "Amber Works founder Anna Bel birthplace unknown.": what a question needs, found or not."""
    steps = (
        f"{RELATION[fact.relation].noun} {fact.object if fact in known else UNKNOWN}"
        for fact in chain
    )
    return f"{chain[0].subject} {' '.join(steps)}."


def best_answer(
    chains: Sequence[Sequence[Fact]], known: frozenset[Fact], rng: random.Random
) -> str:
    """What can honestly be answered: for an incomplete chain its last known object or "unknown"."""
    return "; ".join(_best_part(chain, known, rng) for chain in chains)


def configured_demonstrations(
    config: Config, count: int, progress: Callable[[int], None] | None = None
) -> Iterator[Demonstration]:
    """The first of ``count`` demonstrations to the last, by the run's settings."""
    return generate_demonstrations(
        config.sft,
        config.data.world,
        config.retriever,
        config.data.objectives,
        count,
        config.sft.seed,
        progress,
        config.scoring,
        writes_memory(config.rollout.context),
    )


def generate_demonstrations(
    config: SftConfig,
    world_config: WorldConfig,
    retriever_config: RetrieverConfig,
    objectives: int,
    count: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
    scoring: ScoringConfig | None = None,
    memory: bool = True,
) -> Iterator[Demonstration]:
    """``count`` demonstrations, one after another from ``config.worlds`` worlds of split "sft".

    Tasks have as many questions as ``config.objectives`` says, from its first number to its second,
    which is reached step by step over the first half: what is learnt of short ones is cheap.
    Without it ``objectives`` in four of five cases and fewer in the others. Each has
    ``world_config.min_hops`` to ``max_hops`` hops. ``progress`` is called with the number made so
    far. ``scoring`` gives the answer's form (its defaults when ``None``). Without ``memory`` no
    demonstration writes one, and every round sees the full history (``rollout.context=react``). The
    same arguments give the same demonstrations. Raises ``WorldError`` when the settings leave no
    task answerable.
    """
    scoring = scoring or ScoringConfig()
    workshops: dict[int, _Workshop] = {}
    for index in range(count):
        number = index % config.worlds
        if number not in workshops:
            world = generate_world(
                seed * 100_003 + number,
                world_config.passages,
                "sft",
                world_config.page_fact_share,
            )
            workshops[number] = _Workshop(
                world, config, world_config, retriever_config, scoring, memory
            )
        rng = random.Random(f"demonstration/{seed}/{index}")
        yield workshops[number].make(_objective_range(config, objectives, index / count), rng)
        if progress is not None:
            progress(index + 1)


def _objective_range(config: SftConfig, objectives: int, done: float) -> range:
    """The numbers of questions that a demonstration may have, when ``done`` of all are made."""
    if config.objectives is None:
        return range(1, objectives + 1)
    low, high = config.objectives
    return range(low, low + round((high - low) * min(1.0, done / _GROWING_SHARE)) + 1)


@dataclass(frozen=True)
class _Workshop:
    """Makes demonstrations from one world."""

    world: World
    config: SftConfig
    world_config: WorldConfig
    retriever_config: RetrieverConfig
    scoring: ScoringConfig
    memory: bool = True

    @cached_property
    def toolbox(self) -> ToolBox:
        retriever = RankBm25Retriever(self.world.documents, self.retriever_config.title_weight)
        return ToolBox({self.world.corpus: retriever}, self.retriever_config)

    def oracle(self, lossless: bool = False) -> Oracle:
        """The agent that drops facts, or one that drops none."""
        drop_probability = 0.0 if lossless else self.config.drop_probability
        many = self.config.objectives is not None
        return Oracle(self.toolbox, self.scoring, drop_probability, many, self.config.memory_form)

    def make(self, objectives: range, rng: random.Random) -> Demonstration:
        """One demonstration; its kind is drawn by the configured shares."""
        kinds: tuple[DemonstrationKind, ...] = ("trajectory", "round", "answer")
        config = self.config
        if not self.memory:
            return self._without_memory(objectives, rng)
        weights = (config.trajectory_share, config.round_share, config.answer_share)
        kind = rng.choices(kinds, weights)[0]
        full_history = kind == "trajectory" or (kind == "answer" and rng.random() < 0.5)
        # Of many facts something is lost in every round: an answer would hardly ever be reached.
        lossless = kind == "answer" and config.objectives is not None
        lossless = lossless or (kind == "round" and rng.random() < _LOSSLESS_SHARE)
        task, rounds = self._attempt(
            objectives, rng, self.oracle(lossless), full_history, unfinished=kind == "round"
        )
        if kind == "trajectory":
            turns = _turns(rounds, trained=True)
        elif kind == "round":
            turns = self._single_round(task, rounds, rng)
        elif full_history:
            turns = self._answer_after_history(task, rounds, rng)
        else:
            turns = self._answer_after_memory(task, rounds, rng)
        return Demonstration(task.question, tuple(turns), kind)

    def _without_memory(self, objectives: range, rng: random.Random) -> Demonstration:
        """A whole attempt of an agent without a memory, which sees its full history."""
        task, rounds = self._attempt(objectives, rng, self.oracle(), True, unfinished=False)
        written = [replace(one, memory="") for one in rounds]
        return Demonstration(task.question, tuple(_turns(written, trained=True)), "trajectory")

    def _objective_count(self, objectives: range, full_history: bool, rng: random.Random) -> int:
        """How many questions a task has. Of a configured range, a full history takes few more often
        (in proportion to 1 / n), since its length grows with them."""
        if self.config.objectives is None:
            full = rng.random() < _FULL_OBJECTIVES_SHARE
            return objectives[-1] if full else rng.choice(objectives)
        return rng.choices(objectives, [1.0 / n if full_history else 1.0 for n in objectives])[0]

    def _attempt(
        self,
        objectives: range,
        rng: random.Random,
        oracle: Oracle,
        full_history: bool,
        unfinished: bool,
    ) -> tuple[Task, list[OracleRound]]:
        """A task and the oracle's rounds; attempts without an answer count if ``unfinished``."""
        for _ in range(_ATTEMPTS):
            task = self.world.sample_task(
                rng,
                self._objective_count(objectives, full_history, rng),
                self.world_config.min_hops,
                self.world_config.max_hops,
                "demonstration",
            )
            rounds, answered = oracle.run(task, rng, full_history)
            if answered or unfinished:
                return task, rounds
        raise WorldError(
            f"the oracle found no answer in {_ATTEMPTS} tasks: lower "
            "data.objectives, data.world.max_hops or sft.drop_probability, or raise "
            "retriever.page_chars"
        )

    def _single_round(
        self, task: Task, rounds: Sequence[OracleRound], rng: random.Random
    ) -> list[Turn]:
        """One round after the first, in the memory context: after the round before it."""
        index = rng.randrange(1, len(rounds))
        chains, current = world_chains(task.metadata), rounds[index]
        oracle = self.oracle()
        memory = oracle.memory(chains, oracle.keep(chains, current.known, rng))
        return [
            *_turns([rounds[index - 1]], trained=False),
            Turn("assistant", memory + current.rest),
        ]

    def _answer_after_memory(
        self, task: Task, rounds: list[OracleRound], rng: random.Random
    ) -> list[Turn]:
        """The context of P_mem: a memory, complete or not, and the answer it allows."""
        chains = world_chains(task.metadata)
        if rng.random() < _COMPLETE_SHARE:
            kept = rounds[-1].known
        else:
            kept = self.oracle().keep(chains, rng.choice(rounds[1:]).known, rng)
        answer = self.oracle().answer_text(best_answer(chains, kept, rng))
        return [Turn("assistant", answer, given=self.oracle().memory(chains, kept))]

    def _answer_after_history(
        self, task: Task, rounds: list[OracleRound], rng: random.Random
    ) -> list[Turn]:
        """The context of P_full: the snapshot before a round, and the answer it allows."""
        last = len(rounds) - 1
        index = last if rng.random() < _COMPLETE_SHARE else rng.randint(1, last)
        answer = best_answer(world_chains(task.metadata), rounds[index].known, rng)
        return [
            *_turns(rounds[:index], trained=False),
            Turn("assistant", self.oracle().answer_text(answer)),
        ]


def _turns(rounds: Sequence[OracleRound], trained: bool) -> list[Turn]:
    turns = []
    for entry in rounds:
        turns.append(Turn("assistant", entry.text, trained=trained))
        if entry.observation is not None:
            turns.append(Turn("observation", entry.observation, trained=False, result=entry.result))
    return turns


def _in_order(chains: Sequence[Sequence[Fact]], facts: frozenset[Fact]) -> list[Fact]:
    """The facts in the order of the chains, each once."""
    return list(dict.fromkeys(fact for chain in chains for fact in chain if fact in facts))


def _best_part(chain: Sequence[Fact], known: frozenset[Fact], rng: random.Random) -> str:
    objects = [fact.object for fact in chain if fact in known]
    if len(objects) == len(chain) or (objects and rng.random() < 0.5):
        return objects[-1]
    return UNKNOWN
