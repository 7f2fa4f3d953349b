"""From the data configuration to training tasks, held-out tasks and their retrievers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from mempo.config import Config, DataConfig
from mempo.data.formats import FORMATS, Loaded, load_questions
from mempo.data.mix import mixed_tasks, read_mix
from mempo.data.question_files import (
    FileRows,
    compose_rows,
    given_retriever,
    question_options,
    read_files,
    retriever_of_passages,
    training_source,
)
from mempo.data.sources import named_sources
from mempo.retrieval import RankBm25Retriever, Retriever
from mempo.row_files.told import Told
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Task
from mempo.world.world import World, generate_world


@dataclass(frozen=True)
class TaskSets:
    """Tasks to train on, tasks to evaluate on, and a retriever for every ``Task.corpus``.

    ``shares`` is what each ``Task.source`` of a mix has of every epoch, relative to the others
    (``epoch_tasks``); ``None`` where tasks are drawn from all of them alike.
    ``skipped_rows`` counts malformed rows that ``data.skip_bad_rows`` let pass; ``notes`` are
    sentences about what else was dropped or guessed.
    """

    train: list[Task]
    heldout: list[Task]
    retrievers: Mapping[str, Retriever]
    skipped_rows: int = 0
    notes: tuple[str, ...] = ()
    shares: Mapping[str, float] | None = None

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The sources of the training tasks that metrics name (``named_sources``)."""
        return named_sources(task.source for task in self.train)


@dataclass(frozen=True)
class HeldOutTasks:
    """What ``evaluate.py`` needs: the held-out tasks of each number of objectives, and a retriever
    for every ``Task.corpus``. ``skipped_rows`` and ``notes`` as in ``TaskSets``."""

    by_objectives: Mapping[int, list[Task]]
    retrievers: Mapping[str, Retriever]
    skipped_rows: int = 0
    notes: tuple[str, ...] = ()


def load_task_sets(config: Config) -> TaskSets:
    """Builds the task sets. Raises ``DataError`` or ``ConfigError`` that say what to change."""
    data = config.data
    if data.format == "world":
        train = _world_tasks(config, "train", data.train_counts)
        heldout = _world_tasks(config, "heldout", [data.objectives])
        sets = TaskSets(
            [task for tasks in train.by_objectives.values() for task in tasks],
            heldout.by_objectives[data.objectives],
            {**train.retrievers, **heldout.retrievers},
        )
    elif data.format == "mix":
        sets = _mixed_sets(config)
    else:
        rows, retriever = _file_rows(config)
        sets = TaskSets(
            _training_tasks(rows.train, data, rows.told),
            compose_rows(rows.heldout, data, data.objectives, rows.told),
            {data.format: retriever},
            rows.skipped,
            tuple(rows.told.sentences()),
        )
    count = config.rollout.tasks_per_epoch
    if count > len(sets.train):
        raise ConfigError(
            f"rollout.tasks_per_epoch={count}, but there are only {len(sets.train)} training "
            "tasks: lower it, or give more questions"
        )
    _check_shares(sets, count)
    return sets


def load_heldout_tasks(config: Config) -> HeldOutTasks:
    """The held-out tasks of every number of ``evaluation.objectives``: those of ``load_task_sets``
    with ``data.objectives`` set to it, from rows that are read once.

    Raises ``DataError`` or ``ConfigError`` that say what to change.
    """
    data, setting = config.data, "evaluation.objectives"
    counts = config.evaluation.objectives
    if counts is None:
        counts, setting = (data.objectives,), "data.objectives"
    if data.format == "world":
        return _world_tasks(config, "heldout", counts)
    if data.format == "mix":
        return _mixed_heldout(config, counts, setting)
    rows, retriever = _file_rows(config)
    return HeldOutTasks(
        {
            count: compose_rows(rows.heldout, data, count, told, setting)
            for count, told in _told_once(counts, rows.told)
        },
        {data.format: retriever},
        rows.skipped,
        tuple(rows.told.sentences()),
    )


def load_passages(config: Config) -> tuple[str, Retriever]:
    """What a question that is in no file may search: ``Task.corpus`` and its retriever. Those are
    ``data.corpus`` or the server where there is one, the generated world's held-out passages, or
    the passages of the configured rows.

    Raises what ``load_heldout_tasks`` raises. Questions are read only where they bring passages.
    """
    if config.data.format == "mix":
        raise ConfigError(
            "data=mix: each of its sets has passages of its own, and a question that is in no file "
            "belongs to none: say which to search with data=local data.corpus=<file.jsonl>"
        )
    given = given_retriever(config, config.data.corpus, Told())
    if given is not None:
        return "default", given
    if config.data.format == "world":
        world, retriever = _searched_world(config, "heldout")
        return world.corpus, retriever
    return config.data.format, _file_rows(config)[1]


def load_evidence(config: Config) -> tuple[Loaded, Retriever]:
    """The questions of ``data.questions`` one by one, with the titles of the passages that answer
    them, and the configured retriever. What is held out makes no difference.

    Raises ``ConfigError`` for a format or a file that names no such titles, and what
    ``load_heldout_tasks`` raises.
    """
    data = config.data
    form = FORMATS.get(data.format)
    if form is None or form.evidence is None:
        known = ", ".join(name for name, one in FORMATS.items() if one.evidence is not None)
        raise ConfigError(
            f"data={data.format}: its rows do not name the passages that answer them; these "
            f"formats do: {known}"
        )
    told = Told()
    retriever = given_retriever(config, data.corpus, told)
    source = training_source(data)
    loaded = load_questions(source, question_options(data), retriever is None, with_evidence=True)
    loaded.told.update(told)
    if not any(loaded.evidence.values()):
        raise ConfigError(
            f"data.questions={source.place}: no row names the passages that answer it "
            f"(docs/formats/{data.format}.md says in which fields)"
        )
    return loaded, retriever or retriever_of_passages(
        config, loaded.passages, form.join_titles, source.place
    )


def _training_tasks(rows: Sequence[Task], data: DataConfig, told: Told) -> list[Task]:
    """Of each number of questions as many as the rows make; a row is in one of each number."""
    setting = "data.objectives" if data.train_objectives is None else "data.train_objectives"
    return [
        task
        for count, own in _told_once(data.train_counts, told)
        for task in compose_rows(rows, data, count, own, setting)
    ]


def _world_tasks(
    config: Config, split: Literal["train", "heldout"], counts: Sequence[int]
) -> HeldOutTasks:
    """One world's tasks of each number of objectives; those of training are ``train_tasks`` in
    all."""
    world = config.data.world
    generated, retriever = _searched_world(config, split)
    size = world.heldout_tasks if split == "heldout" else -(-world.train_tasks // len(counts))
    return HeldOutTasks(
        {
            count: generated.tasks(size, count, world.min_hops, world.max_hops, config.data.seed)
            for count in counts
        },
        {generated.corpus: retriever},
    )


def _searched_world(
    config: Config, split: Literal["train", "heldout"]
) -> tuple[World, RankBm25Retriever]:
    world = config.data.world
    generated = generate_world(world.seed, world.passages, split, world.page_fact_share)
    return generated, RankBm25Retriever(generated.documents, config.retriever.title_weight)


def _file_rows(config: Config) -> tuple[FileRows, Retriever]:
    data, told = config.data, Told()
    # The corpus first: where it is a file of its own, a fault in it is told before questions load.
    retriever = given_retriever(config, data.corpus, told)
    rows = read_files(data, with_passages=retriever is None)
    if retriever is None:
        join = FORMATS[data.format].join_titles
        retriever = retriever_of_passages(config, rows.passages, join, rows.place)
    told.update(rows.told)
    return replace(rows, told=told), retriever


def _mixed_sets(config: Config) -> TaskSets:
    data, rows = config.data, read_mix(config)
    train, shares = mixed_tasks(rows.train, data, data.objectives, rows.told)
    heldout, _ = mixed_tasks(rows.heldout, data, data.objectives, rows.told)
    trained, evaluated = (Counter(task.source for task in tasks) for tasks in (train, heldout))
    each = (
        f"{source}: {share / sum(shares.values()):.1%} of every epoch, from {trained[source]} "
        f"training tasks; {evaluated[source]} held out"
        for source, share in shares.items()
    )
    notes = (*rows.told.sentences(), *each)
    return TaskSets(train, heldout, rows.retrievers, rows.skipped, notes, shares)


def _mixed_heldout(config: Config, counts: Sequence[int], setting: str) -> HeldOutTasks:
    rows = read_mix(config)
    return HeldOutTasks(
        {
            count: mixed_tasks(rows.heldout, config.data, count, told, setting)[0]
            for count, told in _told_once(counts, rows.told)
        },
        rows.retrievers,
        rows.skipped,
        tuple(rows.told.sentences()),
    )


def _told_once(counts: Sequence[int], told: Told) -> Iterator[tuple[int, Told]]:
    """Each number of objectives, the largest with what is told: the others drop fewer rows."""
    for count in counts:
        yield count, told if count == max(counts) else Told()


def _check_shares(sets: TaskSets, count: int) -> None:
    """Raises ``ConfigError`` where an epoch's share of a source is more than it has."""
    if sets.shares is None:
        return
    there = Counter(task.source for task in sets.train)
    for source, share in sets.shares.items():
        wanted = math.ceil(share / sum(sets.shares.values()) * count - 1e-9)
        if wanted > there[source]:
            raise ConfigError(
                f"rollout.tasks_per_epoch={count} takes {wanted} tasks of {source} by its share, "
                f"but there are only {there[source]}: lower it or data.mix.{source}.share, or give "
                "more questions"
            )
