"""From the data configuration to training tasks, held-out tasks and their retrievers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mempo.config import Config, ConfigError, require_path
from mempo.data.compose import compose_objectives
from mempo.data.local import load_local_tasks, split_heldout
from mempo.data.world import generate_world
from mempo.retrieval import RankBm25Retriever, Retriever, build_retriever
from mempo.trajectory import Task

_LOCAL = "local"


@dataclass(frozen=True)
class TaskSets:
    """Tasks to train on, tasks to evaluate on, and a retriever for every ``Task.corpus``.

    ``skipped_rows`` counts malformed rows that ``data.skip_bad_rows`` let pass.
    """

    train: list[Task]
    heldout: list[Task]
    retrievers: Mapping[str, Retriever]
    skipped_rows: int = 0


def load_task_sets(config: Config) -> TaskSets:
    """Builds the task sets. Raises ``DataError`` or ``ConfigError`` that say what to change."""
    sets = _world(config) if config.data.format == "world" else _local(config)
    count = config.rollout.tasks_per_epoch
    if count > len(sets.train):
        raise ConfigError(
            f"rollout.tasks_per_epoch={count}, but there are only {len(sets.train)} training "
            "tasks: lower it, or give more questions"
        )
    return sets


def _world(config: Config) -> TaskSets:
    data, world = config.data, config.data.world
    tasks: dict[str, list[Task]] = {}
    retrievers: dict[str, Retriever] = {}
    for split, count in (("train", world.train_tasks), ("heldout", world.heldout_tasks)):
        generated = generate_world(world.seed, world.passages, split, world.page_fact_share)
        tasks[split] = generated.tasks(
            count, data.objectives, world.min_hops, world.max_hops, data.seed
        )
        retrievers[generated.corpus] = RankBm25Retriever(
            generated.documents, config.retriever.title_weight
        )
    return TaskSets(tasks["train"], tasks["heldout"], retrievers)


def _local(config: Config) -> TaskSets:
    data = config.data
    assert data.questions is not None
    # The corpus first: where it is a file of its own, a fault in it is told before questions load.
    corpus = None if data.corpus is None else require_path(data.corpus, "data.corpus")
    retriever = build_retriever(config.retriever, corpus)
    rows, skipped = load_local_tasks(
        require_path(data.questions, "data.questions"), _LOCAL, data.skip_bad_rows
    )
    if data.heldout_questions is None:
        train, heldout = split_heldout(rows, data.heldout_fraction, data.seed)
    else:
        train = rows
        path = require_path(data.heldout_questions, "data.heldout_questions")
        heldout, more = load_local_tasks(path, _LOCAL, data.skip_bad_rows)
        skipped += more
    return TaskSets(
        compose_objectives(train, data.objectives, data.seed),
        compose_objectives(heldout, data.objectives, data.seed),
        {_LOCAL: retriever},
        skipped,
    )
