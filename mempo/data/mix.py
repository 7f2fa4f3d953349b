"""Several data sets at once (``data=mix``): their rows, their corpora, and their shares.

In a mix a task's ``source`` is its data set's name, or all names sorted with ``+`` between them
where it was composed across sets, and row ids begin with the name and a colon, so that two files
may use one id.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mempo.config import Config, DataConfig, MixedSetConfig
from mempo.data.compose import composed_task
from mempo.data.epoch_order import Turns
from mempo.data.formats import FORMATS
from mempo.data.heldout import plain_question
from mempo.data.question_files import (
    FileRows,
    composable,
    compose_rows,
    given_retriever,
    read_files,
    retriever_of_passages,
)
from mempo.retrieval import Retriever
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.runtime.seeds import derive_seed
from mempo.trajectory import Task

_SHARED: Final = "mix"
"""``Task.corpus`` where several data sets search one corpus that is none's own."""

HELD_OUT_ELSEWHERE: Final = "ask what another data set holds out, and are not trained on"
"""What is told of such rows."""

LEFT_OVER: Final = "were left over when the first data set of data.mix was used up"
"""What is told of such rows."""


@dataclass(frozen=True)
class MixedRows:
    """The rows of each data set by its name, and a retriever for every ``Task.corpus``."""

    train: Mapping[str, list[Task]]
    heldout: Mapping[str, list[Task]]
    retrievers: Mapping[str, Retriever]
    skipped: int
    told: Told


def read_mix(config: Config) -> MixedRows:
    """Reads the data sets of ``data.mix``. Raises ``DataError`` or ``ConfigError`` that name the
    data set's setting, or file and line."""
    sets, told = config.data.sets(), Told()
    corpora = _corpora(config, sets)
    # The corpora first: a fault in one is told before questions load.
    retrievers: dict[str, Retriever] = {}
    for name, one in sets.items():
        if corpora[name] not in retrievers:
            setting = f"data.mix.{name}.corpus"
            found = given_retriever(
                config, one.corpus, told, "data.corpus" if corpora[name] == _SHARED else setting
            )
            if found is not None:
                retrievers[corpora[name]] = found
    read = {
        name: read_files(one, corpora[name] not in retrievers, f"data.mix.{name}")
        for name, one in sets.items()
    }
    for corpus in dict.fromkeys(corpora.values()):
        if corpus not in retrievers:
            retrievers[corpus] = _searched_passages(
                config, {name: rows for name, rows in read.items() if corpora[name] == corpus}
            )
    for rows in read.values():
        told.update(rows.told)
    named = {
        name: FileRows(
            list(_named(rows.train, name, corpora[name])),
            list(_named(rows.heldout, name, corpora[name])),
            [],
            rows.place,
            rows.skipped,
            rows.told,
        )
        for name, rows in read.items()
    }
    heldout = {name: rows.heldout for name, rows in named.items()}
    train = {
        name: _trained(name, rows, heldout, (config.data.mix or {})[name], config.data, told)
        for name, rows in named.items()
    }
    return MixedRows(train, heldout, retrievers, sum(one.skipped for one in read.values()), told)


def mixed_tasks(
    rows: Mapping[str, Sequence[Task]],
    data: DataConfig,
    count: int,
    told: Told,
    setting: str = "data.objectives",
) -> tuple[list[Task], dict[str, float]]:
    """Tasks of ``count`` objectives, and the share of each ``Task.source``.

    The sources take turns by their shares, so that the first tasks have them too. Within a block of
    as many tasks as there are sources the order is by chance: every process gets all of them.
    """
    if data.mix_objectives == "across" and count > 1:
        across = _across(rows, data, count, told, setting)
        by_source: dict[str, list[Task]] = {}
        for task in across:
            by_source.setdefault(task.source, []).append(task)
        shares = {source: float(len(tasks)) for source, tasks in sorted(by_source.items())}
    else:
        by_source = {
            name: compose_rows(rows[name], one, count, told, setting)
            for name, one in data.sets().items()
        }
        shares = _shares(data, by_source)
    return _in_turns(by_source, shares, data.seed), shares


def _corpora(config: Config, sets: Mapping[str, DataConfig]) -> dict[str, str]:
    """``Task.corpus`` of each data set: one name for all that search one corpus."""
    data, http = config.data, config.retriever.kind == "http"
    names: dict[str | None, str] = {} if data.corpus is None else {data.corpus: _SHARED}
    found: dict[str, str] = {}
    for name, one in sets.items():
        pooled = one.corpus is None and (http or data.mix_objectives == "across")
        if one.corpus is None:
            found[name] = _SHARED if pooled else name
        else:
            found[name] = names.setdefault(one.corpus, name)
    return found


def _searched_passages(config: Config, rows: Mapping[str, FileRows]) -> Retriever:
    sets = config.data.sets()
    (first, *_) = rows
    return retriever_of_passages(
        config,
        (passage for one in rows.values() for passage in one.passages),
        any(FORMATS[sets[name].format].join_titles for name in rows),
        " and of ".join(one.place for one in rows.values()),
        f"data.mix.{first}",
    )


def _named(tasks: Sequence[Task], name: str, corpus: str) -> Iterator[Task]:
    for task in tasks:
        yield replace(task, id=f"{name}:{task.id}", source=name, corpus=corpus)


def _trained(
    name: str,
    rows: FileRows,
    heldout: Mapping[str, Sequence[Task]],
    one: MixedSetConfig,
    data: DataConfig,
    told: Told,
) -> list[Task]:
    """The training rows of one data set: what no other holds out, and of it ``count``."""
    elsewhere = {
        plain_question(task.question)
        for other, tasks in heldout.items()
        if other != name
        for task in tasks
    }
    kept = []
    for task in rows.train:
        if plain_question(task.question) in elsewhere:
            told.add(HELD_OUT_ELSEWHERE, task.id)
        else:
            kept.append(task)
    if not kept:
        raise DataError(
            f"{rows.place}: every question of data.mix.{name} is held out by another data set: "
            "leave one of them out"
        )
    if one.count is None:
        return kept
    if one.count > len(kept):
        raise DataError(
            f"data.mix.{name}.count={one.count}, but {rows.place} has only {len(kept)} questions "
            "to train on: lower it, or leave it out, which takes them all"
        )
    chosen = random.Random(derive_seed(data.seed, "count", name)).sample(
        range(len(kept)), one.count
    )
    return [kept[index] for index in sorted(chosen)]


def _shares(data: DataConfig, by_name: Mapping[str, Sequence[Task]]) -> dict[str, float]:
    """As they are given, or by the numbers of tasks."""
    return {
        name: float(len(by_name[name])) if one.share is None else one.share
        for name, one in (data.mix or {}).items()
    }


def _across(
    rows: Mapping[str, Sequence[Task]], data: DataConfig, count: int, told: Told, setting: str
) -> list[Task]:
    """Tasks whose questions the data sets give in turn, until one set that is due has no more.

    The rows of each set are shuffled with ``data.seed``, and each is used at most once; so is the
    order of the questions within a task.
    """
    left: dict[str, list[Task]] = {}
    for name, found in rows.items():
        left[name] = composable(found, count, told, setting)
        random.Random(derive_seed(data.seed, "across", name, count)).shuffle(left[name])
    turns = Turns(_shares(data, left))
    order = random.Random(derive_seed(data.seed, "across", count))
    groups: list[list[Task]] = []
    group: list[Task] = []
    while (due := turns.next(left)) and left[due]:
        group.append(left[due].pop())
        if len(group) == count:
            order.shuffle(group)
            groups.append(group)
            group = []
    dropped = len(group) + sum(map(len, left.values()))
    if not groups:
        raise DataError(
            f"{setting}={count}, and {due} has too few questions for one task: lower it, give more "
            "questions, or take data.mix_objectives=within"
        )
    if dropped:
        told.add(LEFT_OVER, due, dropped)
    return [composed_task(one, dropped) for one in groups]


def _in_turns(
    by_source: Mapping[str, Sequence[Task]], shares: Mapping[str, float], seed: int
) -> list[Task]:
    turns, used = Turns(shares), Counter[str]()
    order = random.Random(derive_seed(seed, "turns"))
    names: list[str] = []
    block: list[str] = []
    for _ in range(sum(map(len, by_source.values()))):
        among = [name for name in shares if used[name] < len(by_source[name])]
        block.append(turns.next(among))
        used[block[-1]] += 1
        if len(block) == len(shares):
            order.shuffle(block)
            names += block
            block = []
    left = {name: iter(tasks) for name, tasks in by_source.items()}
    return [next(left[name]) for name in (*names, *block)]
