"""The cells of the study: which variants are trained, from which seeds, and how all are judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Variant:
    """One way of training: a name, what it is in a few words, and its settings."""

    name: str
    title: str
    settings: tuple[str, ...] = ()


START: Final = Variant("start", "supervised start, no RL")
"""What every variant begins with; it has no seed of its own."""

FULL: Final = "rollout.context=full"
ONE_TO_FOUR: Final = (
    "data.train_objectives=[1,4]",
    "rollout.max_rounds=12",  # four questions of two facts each, and some to spare
    "rollout.max_response_tokens=2048",
)

VARIANTS: Final = (
    START,
    Variant("grpo", "no memory advantage, full history", ("algorithm=grpo", FULL)),
    Variant("mempo", "memory advantage, full history", (FULL,)),
    Variant("pool_round", "rewards pooled by round", (FULL, "memory.pool=round")),
    Variant("mempo_paper", "the paper's settings", ("algorithm=mempo_paper", FULL)),
    Variant(
        "filter",
        "confidence filter at 0.5, one mask",
        (FULL, "scoring.threshold=0.5", "scoring.mask=full"),
    ),
    Variant("gamma", "later rewards count, 0.9", (FULL, "memory.gamma=0.9")),
    Variant("log_probability", "gain of log P", (FULL, "scoring.reward=log_probability")),
    Variant("previous", "against the memory before", (FULL, "scoring.baseline=previous")),
    Variant("grpo_memory", "no memory advantage, memory context", ("algorithm=grpo",)),
    Variant("mempo_memory", "memory advantage, memory context"),
    Variant("one_to_four", "as mempo_memory, trained on 1 to 4 questions", ONE_TO_FOUR),
    Variant(
        "curriculum",
        "as one_to_four, fewest questions first",
        (*ONE_TO_FOUR, "rollout.curriculum.enabled=true"),
    ),
)
"""All begin with ``BASE``, which trains in the memory context. ``mempo_reference`` is not among
them: it scores answers in a form of its own, which this start has not learnt."""

BASE: Final = "experiment=long_horizon"
SEEDS: Final = (0, 1, 2)
OBJECTIVES: Final = (1, 2, 4, 8)
CONTEXTS: Final = ("memory", "full")
TASKS: Final = 128


@dataclass(frozen=True)
class Further:
    """What some cells are asked besides: other numbers of questions, or another world."""

    name: str
    title: str
    objectives: tuple[int, ...]
    settings: tuple[str, ...] = ()


FURTHER: Final = (
    Further("more_questions", "more questions", (6, 10)),
    Further("large_world", "a world ten times larger", (2, 4), ("data.world.passages=2000",)),
    Further(
        "long_chains",
        "chains of three and four facts",
        (1, 2),
        ("data.world.min_hops=3", "data.world.max_hops=4"),
    ),
)
FURTHER_VARIANTS: Final = ("start", "grpo", "mempo", "mempo_memory", "one_to_four")

QUICK_VARIANTS: Final = ("start", "grpo", "mempo_memory")
QUICK_EPOCHS: Final = 10
QUICK_TASKS: Final = 16
QUICK_OBJECTIVES: Final = (1, 2)


@dataclass(frozen=True)
class Plan:
    """What one call of the study does, and where it keeps it."""

    variants: tuple[Variant, ...] = VARIANTS
    seeds: tuple[int, ...] = SEEDS
    objectives: tuple[int, ...] = OBJECTIVES
    tasks: int = TASKS
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A variant trained from a seed. The start has seed 0, which changes nothing of it."""

    variant: Variant
    seed: int

    @property
    def name(self) -> str:
        """As its files are called."""
        return self.variant.name if self.variant == START else f"{self.variant.name}-{self.seed}"


def cells(plan: Plan, only: Sequence[str] = ()) -> Iterator[Cell]:
    """All cells, one seed after the other, so that a study that is stopped has whole rows of few
    seeds. ``only``: names of variants or cells. Raises ``ValueError`` for one that is neither."""
    found = [
        Cell(variant, seed)
        for seed in plan.seeds
        for variant in plan.variants
        if variant != START or seed == plan.seeds[0]
    ]
    known = {name for cell in found for name in (cell.name, cell.variant.name)}
    for name in only:
        if name not in known:
            raise ValueError(f"--only {name}: choose of {', '.join(sorted(known))}")
    wanted = set(only) or known
    return (cell for cell in found if wanted & {cell.name, cell.variant.name})


def quick(plan: Plan) -> Plan:
    """The same road in ten minutes: three variants, one seed, few epochs and tasks."""
    return Plan(
        tuple(variant for variant in plan.variants if variant.name in QUICK_VARIANTS),
        plan.seeds[:1],
        QUICK_OBJECTIVES,
        QUICK_TASKS,
        (*plan.overrides, f"trainer.max_epochs={QUICK_EPOCHS}"),
    )
