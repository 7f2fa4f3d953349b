"""The registry of formats, and from a file to tasks and passages (specification section 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from mempo.data.formats import (
    asearcher,
    fanoutqa,
    hotpotqa,
    local,
    musique,
    open_qa,
    search_r1,
)
from mempo.data.formats.reading import read_rows
from mempo.data.formats.row import Options, QuestionRow, QuestionSource
from mempo.retrieval.base import Passage
from mempo.row_files.rows import DataError, UniqueIds
from mempo.row_files.told import Told
from mempo.trajectory import Task


@dataclass(frozen=True)
class DataFormat:
    """One format.

    ``task`` makes a task of a row, of one objective but for rows that were composed before.
    ``read`` gives the rows of a source, or the error that says why one cannot be parsed.
    ``expand`` gives the rows that stand in one row of the file. ``passages`` gives the passages
    that a row of the file carries; ``join_titles`` makes one document of all that have one title.
    ``default_source`` names the questions to read where ``data.questions`` is empty. ``evidence``
    gives the titles of the passages that answer a row of ``expand``.
    """

    task: Callable[[QuestionRow, Options], Task]
    expand: Callable[[QuestionRow, Options], Iterable[QuestionRow]] | None = None
    passages: Callable[[QuestionRow, Options], Iterable[Passage]] | None = None
    join_titles: bool = False
    default_source: Callable[[], str] | None = None
    evidence: Callable[[QuestionRow], Iterable[str]] | None = None
    read: Callable[[QuestionSource], Iterable[QuestionRow | DataError]] = read_rows


FORMATS: Final[Mapping[str, DataFormat]] = {
    "local": DataFormat(local.task, read=local.read_lines),
    "search_r1": DataFormat(search_r1.task),
    "asearcher": DataFormat(asearcher.task),
    "hotpotqa": DataFormat(hotpotqa.task, passages=hotpotqa.passages, evidence=hotpotqa.evidence),
    "musique": DataFormat(musique.task, passages=musique.passages, evidence=musique.evidence),
    "open_qa": DataFormat(open_qa.task, expand=open_qa.expand),
    "fanoutqa": DataFormat(
        fanoutqa.task,
        fanoutqa.expand,
        fanoutqa.passages,
        join_titles=True,
        default_source=fanoutqa.packaged_questions,
        evidence=fanoutqa.evidence,
    ),
}


_USUAL: Final = Options()

WITHOUT_PASSAGES: Final = "bring no passages, though others of their file do"
"""What is told of such rows where the rows' own passages are searched."""


@dataclass
class Loaded:
    """Tasks, the passages that came with them, and the rows left out.

    ``told`` holds what was guessed or dropped on the way.

    ``evidence`` holds, by task id, the titles of the passages that answer it, each once.
    """

    tasks: list[Task] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    skipped: int = 0
    told: Told = field(default_factory=Told)
    evidence: dict[str, tuple[str, ...]] = field(default_factory=dict)


def load_questions(
    source: QuestionSource,
    options: Options = _USUAL,
    with_passages: bool = True,
    with_evidence: bool = False,
) -> Loaded:
    """Reads the questions of a source.

    Passages are read only with ``with_passages``, from rows that gave a task, and evidence only
    with ``with_evidence``. Raises ``DataError`` with file and line or row number, the field, what
    it holds and the row's fields: a row that fits no variant of the format, no question, no gold
    answer or a blank one, an id used twice. With ``options.skip_bad_rows`` such rows are left out
    and counted (in a FanOutQA question, each sub-question for itself). A source without any usable
    row is always an error, and ``ConfigError`` says when there is no such source.
    """
    form = FORMATS[source.format]
    loaded, ids = Loaded(), UniqueIds("question")
    options, bare = replace(options, told=loaded.told), Told()
    for row in form.read(source):
        before = len(loaded.tasks)
        with _skipped(loaded, options):
            if isinstance(row, DataError):
                raise row
            parts = [row] if form.expand is None else list(form.expand(row, options))
            passages = list(form.passages(row, options)) if form.passages and with_passages else []
            for part in parts:
                with _skipped(loaded, options):
                    task = form.task(part, options)
                    ids.claim(task.id, part)
                    if with_evidence and form.evidence is not None:
                        loaded.evidence[task.id] = tuple(dict.fromkeys(form.evidence(part)))
                    loaded.tasks.append(replace(task, corpus=source.corpus))
            if len(loaded.tasks) > before:
                loaded.passages += passages
                if not passages:
                    bare.add(WITHOUT_PASSAGES, row.place)
    if loaded.passages:  # some rows have some: their file promises them
        loaded.told.update(bare)
    if not loaded.tasks:
        reason = (
            f"none of its {loaded.skipped} rows can be used: see them without data.skip_bad_rows"
            if loaded.skipped
            else "it holds no questions"
        )
        raise DataError(f"{source.place}: {reason}")
    return loaded


@contextmanager
def _skipped(loaded: Loaded, options: Options) -> Iterator[None]:
    """A ``DataError`` within the block leaves the rest of it out and is counted, or is raised."""
    try:
        yield
    except DataError:
        if not options.skip_bad_rows:
            raise
        loaded.skipped += 1
