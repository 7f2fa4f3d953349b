"""Few cases in which every two choices meet."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

Case = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def covering_cases(factors: Mapping[str, Sequence[str]], seed: int, tries: int = 60) -> list[Case]:
    """Cases, one choice of each factor, such that every pair of choices of two factors is in one of
    them. Each case is the best of ``tries`` drawn ones around a pair that is still missing."""
    rng = random.Random(seed)
    missing = {
        ((one, a), (other, b))
        for one, other in combinations(factors, 2)
        for a in factors[one]
        for b in factors[other]
    }
    cases: list[Case] = []
    while missing:
        drawn = []
        for _ in range(tries):
            case = {name: rng.choice(choices) for name, choices in factors.items()}
            case.update(rng.choice(sorted(missing)))
            drawn.append(case)
        cases.append(max(drawn, key=lambda case: len(missing & pairs_of(case))))
        missing -= pairs_of(cases[-1])
    return cases


def pairs_of(case: Mapping[str, str]) -> set[Pair]:
    """The pairs of choices that a case holds."""
    return set(combinations(case.items(), 2))
