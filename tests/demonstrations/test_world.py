"""Demonstrations: honest, in the round protocol, and complete chains found with the real tools
(around section 2)."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from mempo.agent.protocol import parse_round
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig, ScoringConfig, SftConfig, WorldConfig
from mempo.demonstrations.demonstration import Demonstration, Turn
from mempo.demonstrations.world import (
    EMPTY_MEMORY,
    MAX_ROUNDS,
    UNKNOWN,
    Oracle,
    generate_demonstrations,
    learn,
    next_fact,
    write_memory,
)
from mempo.retrieval import RankBm25Retriever
from mempo.world.facts import Fact, world_chains
from mempo.world.world import World, generate_world

COUNT = 600


def generate(
    count: int = COUNT,
    objectives: int = 2,
    seed: int = 0,
    world: dict[str, Any] | None = None,
    retriever: dict[str, Any] | None = None,
    objectives_range: tuple[int, int] | None = None,
    **sft: Any,
) -> list[Demonstration]:
    return list(
        generate_demonstrations(
            SftConfig(**{"worlds": 4, "objectives": objectives_range, **sft}),
            WorldConfig(**{"passages": 200, **(world or {})}),
            RetrieverConfig(**(retriever or {})),
            objectives,
            count,
            seed,
        )
    )


@pytest.fixture(scope="module")
def made() -> list[Demonstration]:
    return generate()


def assistant(demonstration: Demonstration) -> list[Turn]:
    return [turn for turn in demonstration.turns if turn.role == "assistant"]


def answer_parts(demonstration: Demonstration) -> list[str]:
    last = demonstration.turns[-1]
    answer = parse_round(last.given + last.text, 2).argument
    assert answer is not None
    return answer.split("; ")


def oracle_for(world: World, drop: float = 0.0, **retriever: Any) -> Oracle:
    toolbox = ToolBox(
        {world.corpus: RankBm25Retriever(world.documents)}, RetrieverConfig(**retriever)
    )
    return Oracle(toolbox, ScoringConfig(), drop)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_answer_is_reached_by_following_the_chain_with_the_tools(share: float) -> None:
    world = generate_world(1, 400, "heldout", page_fact_share=share)
    oracle = oracle_for(world)
    actions: Counter[str | None] = Counter()
    for task in world.tasks(60, 2, 1, 4, 0):
        rounds, answered = oracle.run(task, random.Random(0), full_history=True)
        assert answered
        parsed = [parse_round(r.text, number) for number, r in enumerate(rounds, start=1)]
        assert not any(p.broken_rules for p in parsed)
        assert parsed[-1].action == "answer"
        assert parsed[-1].argument == task.gold
        assert len(rounds) > max(task.metadata["hops"])
        actions.update(p.action for p in parsed)
        seen = "\n".join(r.observation or "" for r in rounds[:-1])
        for fact in (fact for chain in world_chains(task.metadata) for fact in chain):
            assert fact.is_told_in(seen)
    if share == 0.0:
        assert actions["access"] < actions["search"] / 10
    if share == 1.0:
        assert actions["search"] == 0


def test_a_search_that_misses_is_followed_by_opening_the_page() -> None:
    world = generate_world(0, 400, "train", page_fact_share=0.0)
    oracle = oracle_for(world, top_k=1)
    fallbacks = 0
    for task in world.tasks(200, 1, 1, 1, 0):
        for full_history in (True, False):
            rounds, answered = oracle.run(task, random.Random(0), full_history)
            assert answered
            if len(rounds) == 3:
                fallbacks += 1
                (chain,) = world_chains(task.metadata)
                assert rounds[1].rest.endswith(f"<access> {chain[0].subject}</access>")
                assert rounds[1].memory == f"<mem> {EMPTY_MEMORY}</mem>"
    assert fallbacks


def test_kinds_come_in_the_configured_shares(made: list[Demonstration]) -> None:
    counts = Counter(demonstration.kind for demonstration in made)
    assert counts["trajectory"] / COUNT == pytest.approx(0.45, abs=0.06)
    assert counts["round"] / COUNT == pytest.approx(0.35, abs=0.06)
    assert counts["answer"] / COUNT == pytest.approx(0.20, abs=0.06)
    only = generate(20, trajectory_share=0.0, round_share=1.0, answer_share=0.0)
    assert {demonstration.kind for demonstration in only} == {"round"}


def test_trained_rounds_break_no_format_rule(made: list[Demonstration]) -> None:
    for demonstration in made:
        first = 1 if demonstration.kind == "trajectory" else 2
        for number, turn in enumerate(assistant(demonstration), start=first):
            if demonstration.kind == "answer" and not turn.given:
                # Full-history answers stand where a memory would come first.
                continue
            text = turn.given + turn.text
            number = 1 if "<mem>" not in text else number
            assert not list(parse_round(text, number).broken_rules), text


def test_trajectories_are_whole_and_trained(made: list[Demonstration]) -> None:
    for demonstration in (d for d in made if d.kind == "trajectory"):
        roles = [turn.role for turn in demonstration.turns]
        assert roles == ["assistant", "observation"] * (len(roles) // 2) + ["assistant"]
        assert all(turn.trained == (turn.role == "assistant") for turn in demonstration.turns)
        assert all(turn.given == "" for turn in demonstration.turns)
        rounds = assistant(demonstration)
        assert len(rounds) >= 2
        assert rounds[0].text.startswith("<think>")
        assert all(turn.text.startswith("<mem>") for turn in rounds[1:])
        assert "<answer>" in rounds[-1].text
        assert UNKNOWN not in answer_parts(demonstration)


def test_single_rounds_follow_the_memory_context(made: list[Demonstration]) -> None:
    kinds: Counter[str | None] = Counter()
    for demonstration in (d for d in made if d.kind == "round"):
        before, observation, after = demonstration.turns
        assert [t.role for t in demonstration.turns] == ["assistant", "observation", "assistant"]
        assert [t.trained for t in demonstration.turns] == [False, False, True]
        kinds[parse_round(after.text, 2).action] += 1
        # The trained memory and answer hold nothing that the context does not show.
        shown = f"{before.text} {observation.text} {demonstration.question}"
        for name in re.findall(r"[A-Z][a-z]+(?: [A-Z][a-z]+)+", after.text):
            assert name in shown or name.removeprefix("I ") in shown
    assert set(kinds) == {"search", "access", "answer"}


def test_answers_after_a_memory_are_what_it_allows(made: list[Demonstration]) -> None:
    alone = [d for d in made if d.kind == "answer" and len(d.turns) == 1]
    assert len(alone) > 30
    complete = 0
    for demonstration in alone:
        (turn,) = demonstration.turns
        assert re.fullmatch(r"<mem>[^<]+</mem>", turn.given)
        assert turn.text.startswith("\n<think>I can answer now.</think>\n<answer>\n")
        assert turn.trained
        parts = answer_parts(demonstration)
        assert len(parts) == demonstration.question.count("?")
        assert all(part in turn.given or part == UNKNOWN for part in parts)
        complete += UNKNOWN not in parts
    assert complete / len(alone) > 0.6
    assert complete < len(alone)


def test_answers_after_a_history_train_only_the_answer(made: list[Demonstration]) -> None:
    long = [d for d in made if d.kind == "answer" and len(d.turns) > 1]
    assert len(long) > 30
    for demonstration in long:
        *prefix, last = demonstration.turns
        assert not any(turn.trained for turn in prefix)
        assert prefix[-1].role == "observation"
        assert last.trained
        assert last.given == ""
        seen = " ".join(turn.text for turn in prefix)
        assert all(part in seen or part == UNKNOWN for part in answer_parts(demonstration))


def test_the_answer_has_the_form_that_scoring_uses() -> None:
    scoring = ScoringConfig(filler="Done.", answer_template="[{filler}]<answer>{gold}</answer>")
    (made,) = generate_demonstrations(
        SftConfig(worlds=1, trajectory_share=0.0, round_share=0.0, answer_share=1.0),
        WorldConfig(passages=60),
        RetrieverConfig(),
        1,
        1,
        0,
        scoring=scoring,
    )
    assert re.fullmatch(r"\[Done\.\]<answer>[^<]+</answer>", made.turns[-1].text)


def test_the_number_of_questions_grows_to_its_range() -> None:
    """Two to six over the first half: 2 + round(4 * 2 * done); full histories prefer few."""
    made = generate(COUNT, objectives=1, objectives_range=(2, 6))
    counts = [demonstration.question.count("?") for demonstration in made]
    for index, count in enumerate(counts):
        assert 2 <= count <= 2 + round(4 * min(1.0, 2 * index / COUNT))
    late = list(zip(made, counts, strict=True))[COUNT // 2 :]
    rounds = Counter(count for one, count in late if one.kind == "round")
    whole = Counter(count for one, count in late if one.kind == "trajectory")
    assert set(rounds) == set(whole) == {2, 3, 4, 5, 6}
    assert rounds.total() > 80 < whole.total()
    # 1 / 2 of 1 / 2 + … + 1 / 6 = 1.45; a fifth without the preference.
    assert whole[2] / whole.total() == pytest.approx(0.5 / 1.45, abs=0.12)
    assert rounds[2] / rounds.total() == pytest.approx(0.2, abs=0.12)


def test_memories_drop_each_fact_with_the_configured_probability() -> None:
    world = generate_world(0, 200, "sft")
    oracle = oracle_for(world, drop=0.35)
    kept = total = 0
    for index, task in enumerate(world.tasks(300, 2, 2, 2, 0)):
        rounds, _ = oracle.run(task, random.Random(index), full_history=True)
        total += len(rounds[-1].known)
        kept += 0 if EMPTY_MEMORY in rounds[-1].memory else rounds[-1].memory.count(".")
    assert kept / total == pytest.approx(0.65, abs=0.05)


def test_half_of_the_single_rounds_follow_memories_that_lost_nothing() -> None:
    """With nearly every fact dropped, trained memories are empty and the memories before them
    either empty too or complete: up to three facts before the fourth is found."""
    settings = SftConfig(
        worlds=4, drop_probability=0.99, trajectory_share=0.0, round_share=1.0, answer_share=0.0
    )
    world = WorldConfig(passages=100, min_hops=2, max_hops=2)
    facts: Counter[int] = Counter()
    kept = 0
    for demonstration in generate_demonstrations(settings, world, RetrieverConfig(), 2, 200, 0):
        before, _, after = demonstration.turns
        kept += EMPTY_MEMORY not in after.text
        if "<mem>" in before.text:
            memory = before.text.split("</mem>")[0]
            facts[0 if EMPTY_MEMORY in memory else memory.count(".")] += 1
    assert kept < 20
    assert facts[0] > 30
    assert min(facts[1], facts[2], facts[3]) > 5
    assert set(facts) <= {0, 1, 2, 3, 4}


def test_in_the_memory_context_a_lost_fact_is_looked_up_again() -> None:
    world = generate_world(0, 200, "sft")
    lossy, exact = oracle_for(world, drop=0.5), oracle_for(world)
    longer = 0
    for index, task in enumerate(world.tasks(60, 2, 2, 2, 0)):
        rounds, _ = lossy.run(task, random.Random(index), full_history=False)
        shortest, answered = exact.run(task, random.Random(index), full_history=False)
        assert answered
        assert len(rounds) <= MAX_ROUNDS
        for before, after in pairwise(rounds):
            for fact in after.known:
                note = write_memory(world_chains(task.metadata), [fact])[6:-6]
                assert before.observation is not None
                assert note in before.memory or fact.is_told_in(before.observation)
        longer += len(rounds) > len(shortest)
    assert longer > 30


def test_a_fact_counts_only_after_the_facts_before_it() -> None:
    world = generate_world(0, 100, "sft")
    (task,) = world.tasks(1, 1, 3, 3, 0)
    chains = world_chains(task.metadata)
    (first, second, third) = chains[0]
    nothing: frozenset[Fact] = frozenset()
    told = [f"1. {fact.subject}: A thing, {fact.clause}." for fact in chains[0]]
    assert learn(chains, nothing, told[1]) == nothing
    assert learn(chains, nothing, f"{told[2]}\n{told[0]}") == {first}
    assert learn(chains, frozenset({second}), told[0]) == {first, second}
    # Another entity's line with the same clause does not tell the fact, nor does a longer name.
    assert learn(chains, nothing, f"1. Somebody Else: A thing, {first.clause}.") == nothing
    assert learn(chains, nothing, f"{first.subject}: A thing, {first.clause} Hill.") == nothing
    assert next_fact(chains, frozenset({first, third})) == second
    assert next_fact(chains, frozenset(chains[0])) is None
    assert write_memory(chains, []) == "<mem> nothing yet</mem>"


def test_a_checklist_names_every_question_and_what_is_not_known() -> None:
    chains = [
        [
            Fact("Iron Swan", "author", "Ann Bel", False, ""),
            Fact("Ann Bel", "birthplace", "Exside", False, ""),
        ],
        [Fact("Oak Mills", "founder", "Ivo Tal", False, "")],
    ]
    (author, birthplace), (founder,) = chains
    assert write_memory(chains, [founder, author], "checklist") == (
        "<mem> Iron Swan author Ann Bel birthplace unknown. Oak Mills founder Ivo Tal.</mem>"
    )
    assert write_memory(chains, [birthplace], "checklist") == (
        "<mem> Iron Swan author unknown birthplace Exside. Oak Mills founder unknown.</mem>"
    )


def test_checklists_carry_as_many_questions_as_there_are() -> None:
    """Every trained memory has one entry for each question, in whole trajectories and after the
    memory context, and what it has lost is looked up again."""
    settings = SftConfig(worlds=4, objectives=(3, 3), memory_form="checklist", drop_probability=0.4)
    made = generate_demonstrations(
        settings, WorldConfig(passages=100), RetrieverConfig(), 2, 150, 0
    )
    memories = lost = 0
    for demonstration in made:
        for number, turn in enumerate(assistant(demonstration), start=1):
            memory = parse_round(turn.given + turn.text, number + 1).mem
            if memory is not None:
                assert memory.count(".") == demonstration.question.count("?") == 3
                memories += 1
                lost += "unknown" in memory
    assert memories > 300
    assert 0.5 < lost / memories < 1.0


def test_demonstrations_are_reproducible(made: list[Demonstration]) -> None:
    assert generate() == made
    assert generate(seed=1) != made


def test_numbers_of_objectives_and_progress() -> None:
    steps: list[int] = []
    made = list(
        generate_demonstrations(
            SftConfig(worlds=2),
            WorldConfig(passages=100),
            RetrieverConfig(),
            3,
            200,
            0,
            progress=steps.append,
        )
    )
    assert steps == list(range(1, 201))
    counts = Counter(demonstration.question.count("?") for demonstration in made)
    assert set(counts) == {1, 2, 3}
    assert counts[3] > 140


def test_long_tasks_are_whole_too() -> None:
    made = generate(40, objectives=8, trajectory_share=1.0, round_share=0.0, answer_share=0.0)
    assert max(len(assistant(demonstration)) for demonstration in made) > MAX_ROUNDS
    assert Counter(d.question.count("?") for d in made)[8] > 20


def test_settings_that_no_answer_can_be_reached_with_say_what_to_change() -> None:
    only: dict[str, Any] = {"trajectory_share": 1.0, "round_share": 0.0, "answer_share": 0.0}
    with pytest.raises(ValueError, match=r"raise retriever\.page_chars"):
        generate(1, retriever={"passage_chars": 1, "page_chars": 10}, **only)
