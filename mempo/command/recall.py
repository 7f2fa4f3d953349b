"""Prints how many questions find their passages (``mempo.evaluation.recall``)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hydra.errors import HydraException

from mempo.command.cli import compose
from mempo.data.tasks import load_evidence
from mempo.evaluation.recall import measure, recall_table
from mempo.evaluation.tables import print_whole
from mempo.runtime.errors import ConfigError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command
from mempo.runtime.progress import progress_bar


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("recall", "mempo.command.recall"),
        description="The share of questions whose passages the retriever finds, with the question "
        "as the query (docs/retrieval.md).",
    )
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="SETTING=VALUE",
        help="as for `mempo evaluate`: data=fanoutqa, or data=hotpotqa data.questions=Q "
        "data.corpus=C; retriever=rank_bm25 unless given",
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
    for note in loaded.told.sentences():
        print(note)
    if unnamed:
        print(f"{unnamed} questions name no passages and were left out")
    if recall.absent:
        print(f"{recall.absent} of {recall.wanted} titles are not in the corpus")


if __name__ == "__main__":
    main()
