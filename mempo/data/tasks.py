"""From the data configuration to training tasks, held-out tasks and their retrievers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mempo.config import Config, ConfigError, DataConfig, require_path
from mempo.data.compose import compose_objectives
from mempo.data.formats import FORMATS, Loaded, Options, load_questions
from mempo.data.formats.passages import documents
from mempo.data.local import load_local_tasks, split_heldout
from mempo.data.rows import DataError
from mempo.data.world import generate_world
from mempo.retrieval import RankBm25Retriever, Retriever, build_retriever
from mempo.trajectory import Task


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
    sets = _world(config) if config.data.format == "world" else _files(config)
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


def _files(config: Config) -> TaskSets:
    data = config.data
    # The corpus first: where it is a file of its own, a fault in it is told before questions load.
    retriever: Retriever | None = None
    if data.corpus is not None or config.retriever.kind == "http":
        corpus = None if data.corpus is None else require_path(data.corpus, "data.corpus")
        retriever = build_retriever(config.retriever, corpus)
    with_passages = retriever is None
    questions = _questions(data)
    if data.heldout_questions is None and data.heldout_split is None:
        loaded = [_read(data, questions, "data.questions", data.split, with_passages)]
        train, heldout = split_heldout(loaded[0].tasks, data.heldout_fraction, data.seed)
    else:
        if data.heldout_questions is None and Path(questions).is_file():
            raise ConfigError(
                f"data.heldout_split={data.heldout_split}, but data.questions={questions} is one "
                "file, which has no splits: give data.heldout_questions=<file>"
            )
        held_source, setting = data.heldout_questions, "data.heldout_questions"
        if held_source is None:
            held_source, setting = questions, "data.questions"
        loaded = [
            _read(data, questions, "data.questions", data.split, with_passages),
            _read(data, held_source, setting, data.heldout_split or data.split, with_passages),
        ]
        train, heldout = loaded[0].tasks, loaded[1].tasks
    if retriever is None:
        passages = documents(
            (passage for one in loaded for passage in one.passages),
            FORMATS[data.format].join_titles,
        )
        if not passages:
            raise ConfigError(
                f"data.corpus is empty, and the rows of {questions} carry no passages: give "
                "data.corpus=<file.jsonl>, the passages to search"
            )
        retriever = build_retriever(config.retriever, passages)
    return TaskSets(
        _compose(train, data),
        _compose(heldout, data),
        {data.format: retriever},
        sum(one.skipped for one in loaded),
    )


def _questions(data: DataConfig) -> str:
    if data.questions is not None:
        return data.questions
    default = FORMATS[data.format].default_source
    assert default is not None  # the configuration asks for data.questions otherwise
    return default()


def _read(data: DataConfig, source: str, setting: str, split: str, with_passages: bool) -> Loaded:
    """The rows of one source, as tasks of one objective each."""
    if data.format == "local":
        path = require_path(source, setting)
        tasks, skipped = load_local_tasks(path, data.format, data.skip_bad_rows)
        return Loaded(tasks, [], skipped)
    return load_questions(
        data.format,
        source,
        corpus=data.format,
        setting=setting,
        split=split,
        subset=data.subset,
        options=Options(data.answer_separator, data.fanoutqa),
        skip_bad_rows=data.skip_bad_rows,
        with_passages=with_passages,
    )


def _compose(rows: Sequence[Task], data: DataConfig) -> list[Task]:
    """``data.objectives`` rows a task; with ``data.fanoutqa=siblings`` rows of one question."""
    if data.format != "fanoutqa" or data.fanoutqa != "siblings":
        return compose_objectives(rows, data.objectives, data.seed)
    families: dict[str, list[Task]] = {}
    for row in rows:
        families.setdefault(row.metadata["parent"], []).append(row)
    large = [family for family in families.values() if len(family) >= data.objectives]
    if not large:
        raise DataError(
            f"data.objectives={data.objectives}, but no question has that many sub-questions; the "
            f"most is {max(map(len, families.values()), default=0)}: lower it, or set "
            "data.fanoutqa=subquestions"
        )
    return [
        task for family in large for task in compose_objectives(family, data.objectives, data.seed)
    ]
