"""Wherever names are joined, different names give different joints (specification section 11)."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mempo.runtime.names import join_names, split_names
from mempo.runtime.seeds import derive_seed

NAMES = st.lists(st.text(st.sampled_from("ab+/%2BF5"), max_size=4), min_size=1, max_size=4)


@given(NAMES, st.sampled_from("+/"))
def test_names_come_back(names: list[str], separator: str) -> None:
    assert split_names(separator, join_names(separator, names)) == names


def test_names_without_the_separator_stay() -> None:
    assert join_names("+", ["hotpot_5a7", "nq/12", "a b"]) == "hotpot_5a7+nq/12+a b"
    assert join_names("/", ["model", "memory", 2, "a+b"]) == "model/memory/2/a+b"
    assert join_names("+", ["a+b", "50%"]) == "a%2Bb+50%25"


def test_requests_have_seeds_of_their_own_whatever_the_tasks_are_called() -> None:
    """A seed's parts are joined with slashes, and the task's id is the only one that may hold one:
    all other parts are numbers, or contexts' names, which hold none."""
    ids = ["a", "a/0", "0/a", "0/1/a", "a/0/1", "evaluation/b/a", "b/a", "1", "0/1"]
    numbers = range(3)
    families: list[list[tuple[object, ...]]] = [
        [(7, "evaluation", context, one, 0, n) for context in "bc" for one in ids for n in numbers],
        [(7, e, r, one, s, n) for one in ids for e, r, s, n in product(numbers, repeat=4)],
    ]
    for parts in families:
        assert len({derive_seed(*one) for one in parts}) == len(parts)
