"""How many questions find their passages: ``python -m mempo.command.recall SETTING=VALUE ...``.

Every question of ``data.questions`` is searched for as it stands, and the titles of the best 1, 3,
5 and 10 passages are compared with those of the passages that answer it, which the data set names.
It says what one search can find; an agent that words its own queries may find more or less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from mempo.retrieval.base import Retriever
from mempo.runtime.progress import ProgressBar

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
