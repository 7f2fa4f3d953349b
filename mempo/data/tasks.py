"""From the data configuration to training tasks, held-out tasks and their retrievers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from mempo.config import Config, DataConfig, require_path
from mempo.data.compose import compose_objectives, winnable
from mempo.data.formats import FORMATS, Loaded, Options, QuestionSource, load_questions
from mempo.data.formats.hotpotqa import read_aliases
from mempo.data.formats.passages import documents
from mempo.data.heldout import split_heldout
from mempo.data.world import generate_world
from mempo.retrieval import RankBm25Retriever, Retriever, build_retriever
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Task


@dataclass(frozen=True)
class TaskSets:
    """Tasks to train on, tasks to evaluate on, and a retriever for every ``Task.corpus``.

    ``skipped_rows`` counts malformed rows that ``data.skip_bad_rows`` let pass; ``notes`` are
    sentences about what else was dropped or guessed.
    """

    train: list[Task]
    heldout: list[Task]
    retrievers: Mapping[str, Retriever]
    skipped_rows: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeldOutTasks:
    """What ``evaluate.py`` needs: the held-out tasks of each number of objectives, and a retriever
    for every ``Task.corpus``. ``skipped_rows`` and ``notes`` as in ``TaskSets``."""

    by_objectives: Mapping[int, list[Task]]
    retrievers: Mapping[str, Retriever]
    skipped_rows: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """The rows of the configured files, as tasks of one objective each, and what they search."""

    train: list[Task]
    heldout: list[Task]
    retriever: Retriever
    skipped: int
    told: Told


def load_task_sets(config: Config) -> TaskSets:
    """Builds the task sets. Raises ``DataError`` or ``ConfigError`` that say what to change."""
    data = config.data
    if data.format == "world":
        train, heldout = (_world_tasks(config, split, [data.objectives]) for split in _SPLITS)
        sets = TaskSets(
            train.by_objectives[data.objectives],
            heldout.by_objectives[data.objectives],
            {**train.retrievers, **heldout.retrievers},
        )
    else:
        rows = _read_files(config)
        sets = TaskSets(
            _compose(rows.train, data, data.objectives, rows.told),
            _compose(rows.heldout, data, data.objectives, rows.told),
            {data.format: rows.retriever},
            rows.skipped,
            tuple(rows.told.sentences()),
        )
    count = config.rollout.tasks_per_epoch
    if count > len(sets.train):
        raise ConfigError(
            f"rollout.tasks_per_epoch={count}, but there are only {len(sets.train)} training "
            "tasks: lower it, or give more questions"
        )
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
    rows = _read_files(config)
    return HeldOutTasks(
        {
            count: _compose(
                rows.heldout, data, count, rows.told if count == max(counts) else Told(), setting
            )
            for count in counts
        },
        {data.format: rows.retriever},
        rows.skipped,
        tuple(rows.told.sentences()),
    )


def load_passages(config: Config) -> tuple[str, Retriever]:
    """What a question that is in no file may search: ``Task.corpus`` and its retriever. Those are
    ``data.corpus`` or the server where there is one, the generated world's held-out passages, or
    the passages of the configured rows.

    Raises what ``load_heldout_tasks`` raises. Questions are read only where they bring passages.
    """
    given = _given_retriever(config, Told())
    if given is not None:
        return "default", given
    if config.data.format == "world":
        world = config.data.world
        generated = generate_world(world.seed, world.passages, "heldout", world.page_fact_share)
        title_weight = config.retriever.title_weight
        return generated.corpus, RankBm25Retriever(generated.documents, title_weight)
    return config.data.format, _read_files(config).retriever


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
    retriever = _given_retriever(config, told)
    source = _training_source(data)
    loaded = load_questions(source, _options(data), retriever is None, with_evidence=True)
    loaded.told.update(told)
    if not any(loaded.evidence.values()):
        raise ConfigError(
            f"data.questions={source.place}: no row names the passages that answer it "
            f"(docs/formats/{data.format}.md says in which fields)"
        )
    return loaded, retriever or _retriever_of_passages(config, [loaded], source.place)


_ALIASES: Final = "data.aliases"
_SPLITS: Final[tuple[Literal["train", "heldout"], ...]] = ("train", "heldout")


def _world_tasks(
    config: Config, split: Literal["train", "heldout"], counts: Sequence[int]
) -> HeldOutTasks:
    """One world's tasks of each number of objectives."""
    world = config.data.world
    generated = generate_world(world.seed, world.passages, split, world.page_fact_share)
    size = world.train_tasks if split == "train" else world.heldout_tasks
    retriever = RankBm25Retriever(generated.documents, config.retriever.title_weight)
    return HeldOutTasks(
        {
            count: generated.tasks(size, count, world.min_hops, world.max_hops, config.data.seed)
            for count in counts
        },
        {generated.corpus: retriever},
    )


def _read_files(config: Config) -> _Rows:
    data, told = config.data, Told()
    # The corpus first: where it is a file of its own, a fault in it is told before questions load.
    retriever = _given_retriever(config, told)
    training = _training_source(data)
    held_out = _heldout_source(data, training)
    options = _options(data)
    loaded = [
        load_questions(source, options, retriever is None)
        for source in (training, held_out)
        if source is not None
    ]
    if held_out is None:
        train, heldout = split_heldout(loaded[0].tasks, data.heldout_fraction, data.seed)
    else:
        train, heldout = loaded[0].tasks, loaded[1].tasks
    if retriever is None:
        retriever = _retriever_of_passages(config, loaded, training.place)
    for one in loaded:
        told.update(one.told)
    return _Rows(train, heldout, retriever, sum(one.skipped for one in loaded), told)


def _training_source(data: DataConfig) -> QuestionSource:
    place = data.questions
    if place is None:
        default = FORMATS[data.format].default_source
        assert default is not None  # the configuration asks for data.questions otherwise
        place = default()
    return QuestionSource(
        data.format, place, "data.questions", data.split, data.subset, corpus=data.format
    )


def _heldout_source(data: DataConfig, training: QuestionSource) -> QuestionSource | None:
    """``None`` where a fraction of the training questions is held out."""
    split = data.heldout_split or data.split
    if data.heldout_questions is not None:
        return replace(
            training, place=data.heldout_questions, setting="data.heldout_questions", split=split
        )
    if data.heldout_split is None:
        return None
    if Path(training.place).is_file():
        raise ConfigError(
            f"data.heldout_split={data.heldout_split}, but data.questions={training.place} is one "
            "file, which has no splits: give data.heldout_questions=<file>"
        )
    return replace(training, split=split)


def _options(data: DataConfig) -> Options:
    aliases = {} if data.aliases is None else read_aliases(require_path(data.aliases, _ALIASES))
    return Options(data.answer_separator, data.fanoutqa, data.skip_bad_rows, aliases)


def _given_retriever(config: Config, told: Told) -> Retriever | None:
    """The retriever over ``data.corpus`` or behind a server; ``None`` where the rows' own passages
    are to be searched."""
    corpus = config.data.corpus
    if corpus is None and config.retriever.kind != "http":
        return None
    file = None if corpus is None else require_path(corpus, "data.corpus")
    return build_retriever(config.retriever, file, config.data.skip_bad_rows, told)


def _retriever_of_passages(config: Config, loaded: Sequence[Loaded], questions: str) -> Retriever:
    passages = documents(
        (passage for one in loaded for passage in one.passages),
        FORMATS[config.data.format].join_titles,
    )
    if not passages:
        raise ConfigError(
            f"data.corpus is empty, and the rows of {questions} carry no passages: give "
            "data.corpus=<file.jsonl>, the passages to search"
        )
    return build_retriever(config.retriever, passages)


def _compose(
    rows: Sequence[Task],
    data: DataConfig,
    count: int,
    told: Told,
    setting: str = "data.objectives",
) -> list[Task]:
    """``count`` rows a task; with ``data.fanoutqa=siblings`` rows of one question. ``setting`` is
    what errors call the count."""
    rows = winnable(rows, count, told)
    several = next((row for row in rows if len(row.objectives) > 1), None)
    if several is not None and count > 1:
        raise DataError(
            f"{setting}={count}, but the row {several.id} asks {len(several.objectives)} questions "
            f"already: set {setting}=1, which takes the rows as they are"
        )
    if data.format != "fanoutqa" or data.fanoutqa != "siblings":
        return compose_objectives(rows, count, data.seed, setting)
    families: dict[str, list[Task]] = {}
    for row in rows:
        families.setdefault(row.metadata["parent"], []).append(row)
    large = [family for family in families.values() if len(family) >= count]
    if not large:
        raise DataError(
            f"{setting}={count}, but no question has that many sub-questions; the most is "
            f"{max(map(len, families.values()), default=0)}: lower it, or set "
            "data.fanoutqa=subquestions"
        )
    return [task for family in large for task in compose_objectives(family, count, data.seed)]
