"""How many questions find their passages: ``python -m mempo.retrieval.recall SETTING=VALUE ...``.

Every question of ``data.questions`` is searched for as it stands, and the titles of the best 1, 3,
5 and 10 passages are compared with those of the passages that answer it, which the data set names.
It says what one search can find; an agent that words its own queries may find more or less.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hydra.errors import HydraException
from rich.table import Table

from mempo.cli import compose, friendly_errors
from mempo.config import ConfigError
from mempo.data.tasks import load_evidence
from mempo.evaluation_tables import print_whole
from mempo.progress import ProgressBar, progress_bar
from mempo.retrieval.base import Retriever

CUTOFFS: Final = (1, 3, 5, 10)


@dataclass(frozen=True)
class Recall:
    """Shares over questions, by how many passages were looked at.

    ``every``: all of a question's titles are among them. ``some``: at least one is. ``titles``: the
    share of its titles, the mean over questions. ``absent`` counts titles without a page in the
    corpus, of all ``wanted``; they count as not found.
    """

    questions: int
    every: Mapping[int, float]
    some: Mapping[int, float]
    titles: Mapping[int, float]
    absent: int
    wanted: int


def measure(
    questions: Sequence[tuple[str, Sequence[str]]],
    retriever: Retriever,
    bar: ProgressBar,
    cutoffs: Sequence[int] = CUTOFFS,
) -> Recall:
    """Searches for every question, given with the titles that it needs (at least one).

    Titles are compared in folded case. Raises ``RetrievalError`` when the retriever fails.
    """
    found: dict[int, list[float]] = {cutoff: [] for cutoff in cutoffs}
    for question, titles in questions:
        passages = retriever.search(question, max(cutoffs))
        names = [passage.title.casefold() for passage in passages]
        for cutoff, shares in found.items():
            best = set(names[:cutoff])
            shares.append(sum(title.casefold() in best for title in titles) / len(titles))
        bar.advance()
    wanted = {title for _, titles in questions for title in titles}
    count = len(questions)
    return Recall(
        count,
        {cutoff: sum(share == 1 for share in found[cutoff]) / count for cutoff in cutoffs},
        {cutoff: sum(share > 0 for share in found[cutoff]) / count for cutoff in cutoffs},
        {cutoff: sum(found[cutoff]) / count for cutoff in cutoffs},
        sum(retriever.open_page(title) is None for title in sorted(wanted)),
        len(wanted),
    )


def recall_table(recall: Recall) -> Table:
    """A row for each number of passages, shares in percent."""
    table = Table(title=f"Passages found, {recall.questions} questions")
    for title in ("passages", "all of the titles", "at least one", "titles"):
        table.add_column(title, justify="right")
    for cutoff in recall.every:
        shares = (recall.every[cutoff], recall.some[cutoff], recall.titles[cutoff])
        table.add_row(str(cutoff), *(f"{100 * share:.1f} %" for share in shares))
    return table


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mempo.retrieval.recall",
        description="The share of questions whose passages the retriever finds, with the question "
        "as the query (docs/retrieval.md).",
    )
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="SETTING=VALUE",
        help="as for evaluate.py: data=fanoutqa, or data=hotpotqa data.questions=Q data.corpus=C; "
        "retriever=rank_bm25 unless given",
    )
    settings = list(parser.parse_args(arguments).settings)
    if not any(setting.startswith("retriever=") for setting in settings):
        settings.insert(0, "retriever=rank_bm25")  # the default model has one of its own
    try:
        config = compose("evaluate", settings)
    except HydraException as error:
        raise ConfigError(str(error).strip().splitlines()[0]) from None
    loaded, retriever = load_evidence(config)
    asked = [
        (task.question, loaded.evidence[task.id])
        for task in loaded.tasks
        if loaded.evidence[task.id]
    ]
    with progress_bar("searches", len(asked)) as bar:
        recall = measure(asked, retriever, bar)
    print_whole(recall_table(recall))
    unnamed = len(loaded.tasks) - len(asked)
    chosen = config.retriever
    print(f"retriever={chosen.kind} retriever.title_weight={chosen.title_weight}")
    if unnamed:
        print(f"{unnamed} questions name no passages and were left out")
    if recall.absent:
        print(f"{recall.absent} of {recall.wanted} titles are not in the corpus")


if __name__ == "__main__":
    main()
