"""Which trajectories each optimizer step takes, on one process and on several (section 8)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.training.updates import Place, split_into_updates

SEED = 7


def test_one_process_deals_a_shuffled_epoch_out() -> None:
    places = [(task, sample) for task in range(3) for sample in range(4)]
    order = list(range(12))
    random.Random(SEED).shuffle(order)
    found = split_into_updates(places, places, 5, SEED)
    assert found == [order[step::5] for step in range(5)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 3))
def test_each_step_takes_the_same_trajectories_on_any_number_of_processes_property(
    samples: list[int], steps: int, processes: int
) -> None:
    everyone: list[Place] = [(t, s) for t, count in enumerate(samples) for s in range(count)]
    alone = [
        {everyone[index] for index in step}
        for step in split_into_updates(everyone, everyone, steps, SEED)
    ]
    parts = [[one for one in everyone if one[0] % processes == rank] for rank in range(processes)]
    gathered = [one for part in reversed(parts) for one in part]
    shared = [split_into_updates(part, gathered, steps, SEED) for part in parts]
    for step in range(steps):
        taken = [part[i] for part, own in zip(parts, shared, strict=True) for i in own[step]]
        assert len(taken) == len(set(taken))
        assert set(taken) == alone[step]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_without_trajectories_has_no_part(rank: int) -> None:
    parts: list[list[Place]] = [[(0, 0), (0, 1)], []]
    found = split_into_updates(parts[rank], parts[0], 2, SEED)
    assert sum(map(len, found)) == len(parts[rank])
