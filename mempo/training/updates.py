"""Which trajectories of an epoch each optimizer step takes, over all processes."""

from __future__ import annotations

import random
from collections.abc import Sequence

Place = tuple[int, int]
"""A trajectory's place in its epoch: the position of its task among the epoch's, and its sample."""


def split_into_updates(
    own: Sequence[Place], everyone: Sequence[Place], steps: int, seed: int
) -> list[list[int]]:
    """The indices of ``own`` that each of ``steps`` optimizer steps takes.

    ``everyone`` holds the places of all processes, in any order. The epoch is shuffled as a whole
    and dealt out to the steps in turn, so that a step takes the same trajectories however many
    processes there are, and each process its part of them.
    """
    order = sorted(everyone)
    random.Random(seed).shuffle(order)
    position = {place: index for index, place in enumerate(order)}
    mine = sorted(range(len(own)), key=lambda index: position[own[index]])
    return [
        [index for index in mine if position[own[index]] % steps == step] for step in range(steps)
    ]
