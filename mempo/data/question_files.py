"""From the files of one data set to rows, and from rows to tasks of several questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mempo.config import Config, DataConfig, require_path
from mempo.data.compose import compose_objectives, winnable
from mempo.data.formats import FORMATS, Options, QuestionSource, load_questions
from mempo.data.formats.hotpotqa import read_aliases
from mempo.data.formats.passages import documents
from mempo.data.heldout import split_heldout
from mempo.retrieval import Retriever, build_retriever
from mempo.retrieval.base import Passage
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Task


@dataclass(frozen=True)
class FileRows:
    """The rows of one data set, as tasks of one objective each, and the passages that came with
    them. ``place`` is where the training questions stand."""

    train: list[Task]
    heldout: list[Task]
    passages: list[Passage]
    place: str
    skipped: int
    told: Told


def read_files(data: DataConfig, with_passages: bool, prefix: str = "data") -> FileRows:
    """Reads the questions of ``data``, which is the configuration's own section or what one data
    set of ``data.mix`` has alone; ``prefix`` is what errors call its settings.

    Raises ``DataError`` or ``ConfigError`` that say what to change.
    """
    training = training_source(data, prefix)
    held_out = _heldout_source(data, training, prefix)
    options = question_options(data, prefix)
    loaded = [
        load_questions(source, options, with_passages)
        for source in (training, held_out)
        if source is not None
    ]
    if held_out is None:
        train, heldout = split_heldout(loaded[0].tasks, data.heldout_fraction, data.seed)
    else:
        train, heldout = loaded[0].tasks, loaded[1].tasks
    told = Told()
    for one in loaded:
        told.update(one.told)
    passages = [passage for one in loaded for passage in one.passages]
    return FileRows(
        train, heldout, passages, training.place, sum(one.skipped for one in loaded), told
    )


def training_source(data: DataConfig, prefix: str = "data") -> QuestionSource:
    """Where the training questions stand; the format's own where ``data.questions`` is empty."""
    place = data.questions
    if place is None:
        default = FORMATS[data.format].default_source
        assert default is not None  # the configuration asks for data.questions otherwise
        place = default()
    return QuestionSource(
        data.format, place, f"{prefix}.questions", data.split, data.subset, corpus=data.format
    )


def question_options(data: DataConfig, prefix: str = "data") -> Options:
    """How rows are read. Raises ``ConfigError`` or ``DataError`` for the file of aliases."""
    file = data.aliases
    aliases = {} if file is None else read_aliases(require_path(file, f"{prefix}.aliases"))
    return Options(data.answer_separator, data.fanoutqa, data.skip_bad_rows, aliases)


def given_retriever(
    config: Config, corpus: str | None, told: Told, setting: str = "data.corpus"
) -> Retriever | None:
    """The retriever over a corpus file or behind a server; ``None`` where the rows' own passages
    are to be searched."""
    if corpus is None and config.retriever.kind != "http":
        return None
    file = None if corpus is None else require_path(corpus, setting)
    return build_retriever(config.retriever, file, config.data.skip_bad_rows, told)


def retriever_of_passages(
    config: Config, found: Iterable[Passage], join_titles: bool, place: str, prefix: str = "data"
) -> Retriever:
    """The retriever over the passages that the rows of ``place`` brought. Raises ``ConfigError``
    where there are none."""
    passages = documents(found, join_titles)
    if not passages:
        raise ConfigError(
            f"{prefix}.corpus is empty, and the rows of {place} carry no passages: give "
            f"{prefix}.corpus=<file.jsonl>, the passages to search"
        )
    return build_retriever(config.retriever, passages)


def compose_rows(
    rows: Sequence[Task],
    data: DataConfig,
    count: int,
    told: Told,
    setting: str = "data.objectives",
) -> list[Task]:
    """``count`` rows a task; with ``data.fanoutqa=siblings`` rows of one question. ``setting`` is
    what errors call the count."""
    rows = composable(rows, count, told, setting)
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


def composable(rows: Sequence[Task], count: int, told: Told, setting: str) -> list[Task]:
    """The rows of which tasks of ``count`` objectives can be made (``winnable``). Raises
    ``DataError`` where some ask several questions already."""
    rows = winnable(rows, count, told)
    several = next((row for row in rows if len(row.objectives) > 1), None)
    if several is not None and count > 1:
        raise DataError(
            f"{setting}={count}, but the row {several.id} asks {len(several.objectives)} questions "
            f"already: set {setting}=1, which takes the rows as they are"
        )
    return rows


def _heldout_source(
    data: DataConfig, training: QuestionSource, prefix: str
) -> QuestionSource | None:
    """``None`` where a fraction of the training questions is held out."""
    split = data.heldout_split or data.split
    if data.heldout_questions is not None:
        setting = f"{prefix}.heldout_questions"
        return replace(training, place=data.heldout_questions, setting=setting, split=split)
    if data.heldout_split is None:
        return None
    if Path(training.place).is_file():
        raise ConfigError(
            f"{prefix}.heldout_split={data.heldout_split}, but {training.setting}={training.place} "
            f"is one file, which has no splits: give {prefix}.heldout_questions=<file>"
        )
    return replace(training, split=split)
