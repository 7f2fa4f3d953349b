"""The generated world: splits, chains, pages, and the same world in every process (around section
11)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mempo.retrieval import read_corpus
from mempo.world.facts import Fact, chain_question
from mempo.world.relations import PAGE_ORDER, RELATION, RELATIONS
from mempo.world.world import (
    PAGE_FACT_OFFSET,
    SPLITS,
    World,
    WorldError,
    fact_split,
    generate_world,
)

FINGERPRINT = """
import hashlib, json
from mempo.config import RetrieverConfig, SftConfig, WorldConfig
from mempo.demonstrations.world import generate_demonstrations
from mempo.world.world import generate_world
world = generate_world(3, 300, "train")
tasks = [(t.id, t.question, t.gold, t.metadata) for t in world.tasks(100, 2, 1, 4, 5)]
shown = [repr(d) for d in generate_demonstrations(
    SftConfig(worlds=2), WorldConfig(passages=100), RetrieverConfig(), 2, 20, 1)]
text = json.dumps([list(map(repr, world.documents)), tasks, shown])
print(hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(7, 400, "train")


def test_every_process_builds_the_same_world_and_tasks() -> None:
    prints = set()
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        prints.add(done.stdout)
    assert len(prints) == 1


def test_seeds_and_sizes_change_the_world(world: World) -> None:
    other = generate_world(8, 400, "train")
    assert {fact.sentence for fact in world.facts} != {fact.sentence for fact in other.facts}
    assert generate_world(7, 400, "train").facts == world.facts


def test_splits_share_names_but_no_fact() -> None:
    worlds = {split: generate_world(0, 3000, split) for split in SPLITS}
    for split, built in worlds.items():
        assert {fact_split(fact.subject, fact.relation, fact.object) for fact in built.facts} == {
            split
        }
    for one, two in (("train", "heldout"), ("train", "sft"), ("heldout", "sft")):
        assert set(worlds[one].kinds) & set(worlds[two].kinds)
        assert not {fact.sentence for fact in worlds[one].facts} & {
            fact.sentence for fact in worlds[two].facts
        }


@pytest.mark.parametrize("passages", [40, 101, 400, 3000])
def test_a_world_has_one_passage_and_one_page_for_each_entity(passages: int) -> None:
    built = generate_world(1, passages, "heldout")
    assert len(built.documents) == len(built.passages) == len(built.kinds) == passages
    assert len({document.id for document in built.documents}) == passages
    assert [document.title for document in built.documents] == list(built.kinds)


def test_relations_are_functional_and_their_objects_of_the_right_kind(world: World) -> None:
    pairs = {(fact.subject, fact.relation) for fact in world.facts}
    assert len(pairs) == len(world.facts)
    for fact in world.facts:
        assert world.kinds[fact.subject] == RELATION[fact.relation].subject
        assert world.kinds[fact.object] == RELATION[fact.relation].object
        assert fact.subject != fact.object


def test_names_share_their_words(world: World) -> None:
    people = [name for name, kind in world.kinds.items() if kind == "person"]
    last_names = {name.split()[-1] for name in people}
    assert len(last_names) < len(people) / 3
    assert all(word.isascii() and word.isalpha() for name in world.kinds for word in name.split())


def test_page_facts_stand_only_on_pages_beyond_the_short_text(world: World) -> None:
    page_of = {document.title: document for document in world.documents}
    hidden = [fact for fact in world.facts if fact.on_page]
    assert {fact.relation for fact in hidden} == set(PAGE_ORDER[:2])
    for fact in world.facts:
        page = page_of[fact.subject]
        if fact.on_page:
            assert page.text.index(fact.clause) >= PAGE_FACT_OFFSET
            assert fact.object not in page.text[:PAGE_FACT_OFFSET]
            assert all(fact.clause not in passage.text for passage in world.passages)
        else:
            assert fact.clause in page.search_text
            assert fact.clause in page.text


@pytest.mark.parametrize(("share", "relations"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_the_share_of_page_facts(share: float, relations: int) -> None:
    built = generate_world(2, 60, "sft", page_fact_share=share)
    assert len({fact.relation for fact in built.facts if fact.on_page}) == relations
    for document in built.documents:
        for fact in built.facts_of(document.title):
            assert document.text.count(fact.clause) == 1
            assert (fact.clause in document.search_text) != fact.on_page
            assert not fact.on_page or document.text.index(fact.clause) >= PAGE_FACT_OFFSET


def test_texts_are_compact(world: World) -> None:
    passages = [f"{passage.title} {passage.text}".split() for passage in world.passages]
    pages = [document.text.split() for document in world.documents]
    assert 8 <= sum(map(len, passages)) / len(passages) <= 15
    assert 14 <= sum(map(len, pages)) / len(pages) <= 30
    assert all(len(document.text) >= PAGE_FACT_OFFSET for document in world.documents)


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_a_question_needs_every_hop_of_its_chain(world: World, hops: int) -> None:
    text_of = {document.title: document.text for document in world.documents}
    for task in world.tasks(50, 1, hops, hops, 0):
        (chain,) = task.metadata["chains"]
        (objective,) = task.objectives
        assert task.metadata["hops"] == [hops] == [len(chain)]
        assert objective.golds == (chain[-1]["object"],)
        assert chain[0]["subject"] in objective.question
        for before, after in pairwise(chain):
            assert before["object"] == after["subject"]
            assert before["object"] not in objective.question
            assert objective.golds[0] not in text_of[before["subject"]]
        assert objective.golds[0] not in objective.question
        subject = chain[0]["subject"]
        for step in chain:
            answers = {
                fact.object
                for fact in world.facts
                if fact.subject == subject and fact.relation == step["relation"]
            }
            assert len(answers) == 1
            subject = answers.pop()
        assert subject == objective.golds[0]


def test_the_wording_of_questions(world: World) -> None:
    by_relations = {}
    for task in world.tasks(400, 1, 2, 2, 0):
        chain = task.metadata["chains"][0]
        key = tuple(fact["relation"] for fact in chain)
        by_relations[key] = (task.question, chain[0]["subject"])
    question, subject = by_relations["founder", "birthplace"]
    assert question == f"What is the birthplace of the founder of {subject}?"
    question, subject = by_relations["headquarters", "mayor"]
    assert question == f"Who is the mayor of the home of {subject}?"


def test_no_two_chains_of_a_world_have_one_question(world: World) -> None:
    questions: dict[str, tuple[Fact, Fact]] = {}
    for first in world.facts:
        for second in world.facts_of(first.object):
            question = chain_question([first, second])
            assert questions.setdefault(question, (first, second)) == (first, second)
    assert len(questions) > len(world.facts)


def test_tasks_are_distinct_and_keep_their_order(world: World) -> None:
    tasks = world.tasks(500, 2, 1, 2, 0)
    assert len({task.id for task in tasks}) == 500
    assert len({frozenset(o.question for o in task.objectives) for task in tasks}) == 500
    assert world.tasks(20, 2, 1, 2, 0) == tasks[:20]
    assert not {task.id for task in world.tasks(20, 2, 1, 2, 1)} & {task.id for task in tasks}
    assert not {task.id for task in world.tasks(20, 3, 1, 2, 0)} & {task.id for task in tasks}
    assert {task.corpus for task in tasks} == {"world-train"}
    assert all(len({o.question for o in task.objectives}) == 2 for task in tasks)


def test_metadata_is_plain_json(world: World) -> None:
    (task,) = world.tasks(1, 2, 2, 2, 0)
    metadata = json.loads(json.dumps(task.metadata))
    assert metadata["world_seed"] == 7
    assert metadata["split"] == "train"
    assert set(metadata["chains"][0][0]) == {"subject", "relation", "object", "sentence", "on_page"}


def test_a_world_that_is_too_small_says_what_to_change() -> None:
    small = generate_world(0, 40, "train")
    with pytest.raises(WorldError, match=r"of 2000 different tasks: raise data\.world\.passages"):
        small.tasks(2000, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 39, "train"), "passages=39"),
        ((0, 100, "test"), "split='test'"),
        ((0, 100, "train", 1.5), r"page_fact_share=1\.5"),
    ],
)
def test_arguments_out_of_range(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_world(*arguments)


def test_the_corpus_can_be_written_and_read_again(world: World, tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"
    path.write_text("".join(json.dumps(asdict(page)) + "\n" for page in world.documents))
    assert tuple(read_corpus(path)) == world.documents


def test_long_names_come_only_when_short_ones_run_out() -> None:
    small = generate_world(0, 200, "train").kinds
    for kind, words in (("place", 1), ("person", 2), ("company", 2), ("work", 2)):
        assert {len(name.split()) for name in small if small[name] == kind} == {words}
    medium = generate_world(0, 2000, "train").kinds
    assert {len(name.split()) for name in medium} == {1, 2}
    large = generate_world(0, 20_000, "train")
    assert len(large.kinds) == 20_000
    assert {len(name.split()) for name in large.kinds} == {1, 2, 3}


def test_distractors_share_words_with_other_names() -> None:
    kinds = generate_world(0, 200, "train").kinds
    for kind in ("person", "company", "work"):
        words = Counter(word for name in kinds if kinds[name] == kind for word in name.split())
        shared = sum(count for count in words.values() if count > 1)
        assert shared >= 0.8 * sum(words.values())


def test_relations_have_one_noun_each() -> None:
    assert len({relation.noun for relation in RELATIONS}) == len(RELATIONS)
    author = RELATION["author"]
    assert author.sentence("Iron Swan", "Ann Bel") == "The author of Iron Swan is Ann Bel."
    assert author.question("Iron Swan") == "Who is the author of Iron Swan?"
    assert author.query("Iron Swan") == "author of Iron Swan"
    assert author.note("Iron Swan", "Ann Bel") == "Iron Swan author Ann Bel."
    assert sorted(PAGE_ORDER) == sorted(RELATION)
