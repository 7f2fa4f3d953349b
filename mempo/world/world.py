"""A generated country: its people, companies, places and works, and questions about them.

Which name has which fact is random in each world, so nothing can be learnt by heart. The splits
share names but no fact: every possible fact belongs to one split, so what was true in training is
false in a held-out world. Names have two words, places one; longer ones come only when a large
world runs out of them.

Everything follows from ``(seed, passages, split)``, on every machine and in every process.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, get_args

from mempo.retrieval.base import Document, Passage
from mempo.runtime.errors import MempoError
from mempo.trajectory import Objective, Task
from mempo.world import names
from mempo.world.facts import Fact, chain_question
from mempo.world.relations import (
    DETAILS,
    INTRODUCTIONS,
    KIND_SHARES,
    PAGE_ORDER,
    RELATIONS,
    Kind,
    Relation,
)

Split = Literal["train", "heldout", "sft"]
SPLITS: Final[tuple[str, ...]] = get_args(Split)

PAGE_FACT_OFFSET: Final = 100
"""A page's facts that search does not show stand beyond this many characters of its text."""

_NAME_FORMS: Final[dict[Kind, tuple[tuple[tuple[str, ...], ...], ...]]] = {
    "person": (
        (names.FIRST_NAMES, names.LAST_NAMES),
        (names.FIRST_NAMES, names.FIRST_NAMES, names.LAST_NAMES),
    ),
    "company": (
        (names.TITLE_WORDS, names.COMPANY_HEADS),
        (names.TITLE_WORDS, names.TITLE_WORDS, names.COMPANY_HEADS),
    ),
    "place": (
        (names.PLACE_WORDS,),
        (names.PLACE_PREFIXES, names.PLACE_WORDS),
        (names.PLACE_PREFIXES, names.PLACE_WORDS, names.PLACE_WORDS),
    ),
    "work": (
        (names.TITLE_WORDS, names.WORK_HEADS),
        (names.TITLE_WORDS, names.TITLE_WORDS, names.WORK_HEADS),
    ),
}
_NAMES_PER_WORD: Final = 3
_MISSES: Final = 60  # refused names in a row before longer names are tried
_ATTEMPTS: Final = 200  # refused chains or tasks in a row before the world counts as too small


class WorldError(MempoError, ValueError):
    """The world cannot hold what was asked of it; the message says what to change."""


@dataclass(frozen=True)
class World:
    """A generated country. ``kinds`` says what each entity is, in document order."""

    seed: int
    split: str
    facts: tuple[Fact, ...]
    documents: tuple[Document, ...]
    kinds: Mapping[str, Kind]
    _facts_of: Mapping[str, tuple[Fact, ...]] = field(repr=False)
    _by_kind: Mapping[Kind, tuple[str, ...]] = field(repr=False)

    @property
    def corpus(self) -> str:
        """The name of this world's retriever in ``Task.corpus``."""
        return f"world-{self.split}"

    @property
    def passages(self) -> list[Passage]:
        """What search returns: one short passage for each entity."""
        return [Passage(page.title, page.search_text, page.url) for page in self.documents]

    def facts_of(self, subject: str) -> tuple[Fact, ...]:
        """The facts about one entity."""
        return self._facts_of[subject]

    def tasks(
        self, count: int, objectives: int, min_hops: int, max_hops: int, seed: int
    ) -> list[Task]:
        """``count`` tasks of ``objectives`` questions each, no two alike.

        Each question follows a chain of ``min_hops`` to ``max_hops`` facts. Raises ``WorldError``
        when the world is too small for that many.
        """
        rng = random.Random(f"{self.split}/{self.seed}/tasks/{seed}/{objectives}")
        prefix = f"{self.corpus}-{self.seed}-{objectives}x{min_hops}to{max_hops}-{seed}"
        tasks: list[Task] = []
        seen: set[frozenset[str]] = set()
        refused = 0
        while len(tasks) < count:
            task = self.sample_task(
                rng, objectives, min_hops, max_hops, f"{prefix}-{len(tasks):05d}"
            )
            questions = frozenset(objective.question for objective in task.objectives)
            if questions not in seen:
                seen.add(questions)
                tasks.append(task)
                refused = 0
                continue
            refused += 1
            if refused == _ATTEMPTS:
                raise WorldError(
                    f"a world of {len(self.documents)} passages gave only {len(tasks)} of {count} "
                    "different tasks: raise data.world.passages or data.world.max_hops, or ask "
                    "for fewer tasks"
                )
        return tasks

    def sample_task(
        self, rng: random.Random, objectives: int, min_hops: int, max_hops: int, name: str
    ) -> Task:
        """One task with different questions, drawn with ``rng``; ``name`` becomes its id.

        Raises ``WorldError`` when the world holds too few chains of that length.
        """
        chains: dict[str, tuple[Fact, ...]] = {}
        for _ in range(objectives * _ATTEMPTS):
            chain = self._sample_chain(rng, rng.randint(min_hops, max_hops))
            chains.setdefault(chain_question(chain), chain)
            if len(chains) == objectives:
                break
        else:
            raise WorldError(
                f"a world of {len(self.documents)} passages has no {objectives} different "
                f"questions of {min_hops} to {max_hops} hops: raise data.world.passages"
            )
        return Task(
            id=name,
            objectives=tuple(
                Objective(question, (chain[-1].object,)) for question, chain in chains.items()
            ),
            source="world",
            corpus=self.corpus,
            metadata={
                "chains": [[asdict(fact) for fact in chain] for chain in chains.values()],
                "hops": [len(chain) for chain in chains.values()],
                "world_seed": self.seed,
                "split": self.split,
            },
        )

    def _sample_chain(self, rng: random.Random, hops: int) -> tuple[Fact, ...]:
        for _ in range(_ATTEMPTS):
            subject = rng.choice(self._by_kind[rng.choice(tuple(self._by_kind))])
            chain: list[Fact] = []
            for _ in range(hops):
                chain.append(rng.choice(self._facts_of[subject]))
                subject = chain[-1].object
            if self._needs_every_hop(chain):
                return tuple(chain)
        raise WorldError(
            f"a world of {len(self.documents)} passages has no chain of {hops} hops: "
            "raise data.world.passages"
        )

    def _needs_every_hop(self, chain: Sequence[Fact]) -> bool:
        """No entity comes twice, and no page before the last one names the answer."""
        visited = {chain[0].subject, *(fact.object for fact in chain)}
        return len(visited) == len(chain) + 1 and not any(
            fact.object == chain[-1].object
            for step in chain[:-1]
            for fact in self._facts_of[step.subject]
        )


def generate_world(seed: int, passages: int, split: str, page_fact_share: float = 0.25) -> World:
    """Builds the world of ``passages`` entities, with one passage and one page for each.

    ``page_fact_share`` is the share of relations whose facts stand only on pages; 0 puts every
    fact into the passages too. Raises ``ValueError`` for an unknown split, a share outside
    [0, 1] or fewer than 40 passages.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: choose one of {', '.join(SPLITS)}")
    if not 0.0 <= page_fact_share <= 1.0:
        raise ValueError(f"page_fact_share={page_fact_share}: choose a share from 0 to 1")
    if passages < 40:
        raise ValueError(f"passages={passages}: a world needs at least 40")
    rng = random.Random(f"{split}/{seed}/world/{passages}")
    by_kind = {
        kind: tuple(_draw_names(kind, count, rng)) for kind, count in _kind_counts(passages).items()
    }
    page_relations = frozenset(PAGE_ORDER[: round(page_fact_share * len(RELATIONS))])
    kinds: dict[str, Kind] = {name: kind for kind, members in by_kind.items() for name in members}
    facts_of = {
        name: tuple(_draw_facts(name, kind, by_kind, split, page_relations, rng))
        for name, kind in kinds.items()
    }
    order = list(kinds)
    rng.shuffle(order)
    documents = tuple(
        _document(f"{split}-{seed}-{index}", name, kinds[name], facts_of[name], rng)
        for index, name in enumerate(order)
    )
    return World(
        seed=seed,
        split=split,
        facts=tuple(fact for name in order for fact in facts_of[name]),
        documents=documents,
        kinds={name: kinds[name] for name in order},
        _facts_of=facts_of,
        _by_kind=by_kind,
    )


def fact_split(subject: str, relation: str, object_: str) -> str:
    """The split that a possible fact belongs to; no world of another split holds it."""
    key = f"{subject}/{relation}/{object_}"
    return SPLITS[zlib.crc32(key.encode()) % len(SPLITS)]


def _kind_counts(passages: int) -> dict[Kind, int]:
    counts = {kind: int(passages * share) for kind, share in KIND_SHARES.items()}
    counts["person"] += passages - sum(counts.values())
    return counts


def _draw_names(kind: Kind, count: int, rng: random.Random) -> Iterator[str]:
    """``count`` different names of as few words as will do. In names of two words each word is
    shared by about three names of the kind; worlds of one size use the same words."""
    taken: set[str] = set()
    for form in _NAME_FORMS[kind]:
        size = count if len(form) == 1 else max(8, math.ceil(count / _NAMES_PER_WORD))
        misses = 0
        while len(taken) < count and misses < _MISSES:
            parts = [rng.choice(pool[:size]) for pool in form]
            name = " ".join(parts)
            if name in taken or len(set(parts)) < len(parts):
                misses += 1
                continue
            misses = 0
            taken.add(name)
            yield name
    if len(taken) < count:
        raise WorldError(f"there are not enough names for {count} entities of kind {kind}")


def _draw_facts(
    name: str,
    kind: Kind,
    by_kind: Mapping[Kind, Sequence[str]],
    split: str,
    page_relations: frozenset[str],
    rng: random.Random,
) -> Iterator[Fact]:
    for relation in RELATIONS:
        if relation.subject == kind:
            on_page = relation.name in page_relations
            yield from _draw_fact(name, relation, by_kind, split, on_page, rng)


def _draw_fact(
    name: str,
    relation: Relation,
    by_kind: Mapping[Kind, Sequence[str]],
    split: str,
    on_page: bool,
    rng: random.Random,
) -> Iterator[Fact]:
    """A fact of this split: the same subject and relation have another object in another split.

    Where a very small world holds no object that the split allows, there is no such fact.
    """
    for _ in range(_MISSES):
        other = rng.choice(by_kind[relation.object])
        if other != name and fact_split(name, relation.name, other) == split:
            yield Fact(name, relation.name, other, on_page, relation.sentence(name, other))
            return


def _document(
    key: str, name: str, kind: Kind, facts: Sequence[Fact], rng: random.Random
) -> Document:
    """Passage: an introduction and the facts that search shows, about the title's entity. Page:
    those, then details, then the page's own facts."""
    shown = [fact.clause for fact in facts if not fact.on_page]
    passage = ", ".join([rng.choice(INTRODUCTIONS[kind]), *shown]) + "."
    details = rng.sample(DETAILS[kind], len(DETAILS[kind]))
    text = passage
    used = 0
    while used == 0 or len(text) < PAGE_FACT_OFFSET:
        text = f"{text} {details[used]}"
        used += 1
    hidden = [f"Further: {fact.clause}." for fact in facts if fact.on_page]
    return Document(
        id=key,
        title=name,
        text=" ".join([text, *hidden]),
        url=f"https://world.invalid/{name.replace(' ', '_')}",
        passage=passage,
    )
