"""Which facts a trajectory's memories hold, round by round (around section 9)."""

from __future__ import annotations

import pytest

from mempo.records.fact_histories import FactState, fact_histories, is_held
from mempo.records.trajectory_lines import TrajectoryLine
from mempo.world.facts import Fact, world_chains
from tests.support.inspected_run import (
    METADATA,
    WORLD_ROUNDS,
    round_line,
    trajectory,
    world_trajectory,
)

FACT = Fact("Anna Barger", "teacher", "Aura Barka", on_page=False, sentence="")


@pytest.mark.parametrize(
    ("memory", "held"),
    [
        ("Anna Barger teacher Aura Barka.", True),
        ("anna barger TEACHER aura barka", True),
        ("The teacher of Anna Barger is Aura Barka.", True),
        ("Aura Barka is the teacher of Anna Barger", True),
        ("Anna Barger's teacher: Aura Barka; more", True),
        ("Aura Barka teacher Anna Barger.", False),  # the other way round
        ("Anna Barger is the teacher of Aura Barka.", False),
        ("Anna Barger mentor Aura Barka.", False),
        ("Anna Barger. Teacher Aura Barka.", False),  # two sentences
        ("Anna Bargers teacher Aura Barka", False),  # another name
        ("", False),
    ],
)
def test_a_fact_is_held_where_a_sentence_says_it(memory: str, held: bool) -> None:
    assert is_held(FACT, memory) is held


def test_facts_by_round_and_where_they_were_lost() -> None:
    mayor, author, employer = fact_histories(TrajectoryLine(**world_trajectory()))
    assert [s[0] for s in mayor.states] == ["u", "h", "h", "l", "h"]
    assert [s.value for s in author.states] == ["unseen", "unseen", "held", "spent", "lost"]
    assert [s.value for s in employer.states] == ["unseen", "unseen", "unseen", "held", "lost"]
    assert (mayor.lost_in, author.lost_in, employer.lost_in) == ((4,), (5,), (5,))
    # Told in rounds 1 and 2; no tool tells the third, the memory of round 4 says it.
    assert (mayor.found_at, author.found_at, employer.found_at) == (0, 1, 3)
    assert mayor.named == (False, False, False, True, False)
    assert author.named == (False, False, False, True, True)
    assert employer.named == (False, False, False, False, True)
    assert (mayor.objective, author.objective, employer.objective) == (0, 1, 1)


def test_a_fact_that_a_tool_told_and_no_memory_said() -> None:
    rounds = [round_line(1, observation=WORLD_ROUNDS[0][1]), round_line(2, "nothing yet")]
    line = TrajectoryLine(**trajectory("t", 0, rounds=rounds, metadata=METADATA))
    states = [one.states for one in fact_histories(line)]
    assert states[0] == (FactState.UNSEEN, FactState.TOLD)
    assert states[1] == states[2] == (FactState.UNSEEN, FactState.UNSEEN)
    assert [one.found_at for one in fact_histories(line)] == [0, None, None]


def test_a_round_without_memory_holds_nothing() -> None:
    rounds = [round_line(1), round_line(2, "Belcott mayor Arlo Berrick"), round_line(3)]
    line = TrajectoryLine(**trajectory("t", 0, rounds=rounds, metadata=METADATA))
    assert fact_histories(line)[0].lost_in == (3,)


def test_other_tasks_have_no_facts() -> None:
    assert world_chains({}) == []
    assert world_chains({"chains": "of shops", "world_seed": 1}) == []
    with pytest.raises(ValueError, match="not facts of the generated world"):
        world_chains({"chains": [[{"subject": "a"}]], "world_seed": 1})
