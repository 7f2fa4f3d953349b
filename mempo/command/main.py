"""The command ``mempo``: one subcommand for each program of the package."""

from __future__ import annotations

import difflib
import importlib
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mempo.command.completion import completion_script
from mempo.runtime.friendly_errors import end_with
from mempo.runtime.program import remember_start, started_by_process


@dataclass(frozen=True)
class Subcommand:
    """The module whose ``main(arguments)`` runs, and what it does in a line."""

    module: str
    does: str
    composed: bool = False
    """Whether Hydra reads its command line; it takes the process's own arguments."""


SUBCOMMANDS: Final = {
    "train": Subcommand("mempo.command.train", "train an agent that writes its memory", True),
    "evaluate": Subcommand("mempo.command.evaluate", "evaluate models on held-out tasks", True),
    "ask": Subcommand("mempo.ask.__main__", "ask a trained agent, and watch its memory"),
    "collect": Subcommand(
        "mempo.collect.__main__", "collect a teacher's trajectories for the supervised start"
    ),
    "inspect": Subcommand("mempo.inspect.__main__", "show what a run did, on one page"),
    "plots": Subcommand("mempo.plots.__main__", "draw the curves of runs, for papers"),
    "forgetting": Subcommand(
        "mempo.forgetting.__main__", "report what memories hold on to and lose"
    ),
    "rescore": Subcommand("mempo.command.rescore", "judge stored trajectories by another reward"),
    "dashboard": Subcommand("mempo.plots.dashboard", "save a workspace at Weights & Biases"),
    "index": Subcommand("mempo.retrieval.build", "build an index of passages on disk"),
    "serve": Subcommand("mempo.retrieval.serve", "serve search over passages to other machines"),
    "recall": Subcommand("mempo.command.recall", "measure how many questions find their passages"),
    "init": Subcommand("mempo.command.init", "begin a tool, a reward or a callback of your own"),
}

USAGE: Final = """\
usage: mempo SUBCOMMAND [ARGUMENT ...]
       mempo SUBCOMMAND --help
       mempo --completion bash|zsh

Trains language-model agents that write their own memory (MemPO).

subcommands
{subcommands}

for completion in this shell:  eval "$(mempo --completion bash)"
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line. Ends with a sentence for a name that is no subcommand."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    match given:
        case [] | ["--help" | "-h" | "help", *_]:
            print(usage(), end="")
        case ["--completion", *shell]:
            print(completion_script(shell, SUBCOMMANDS), end="")
        case [name, *rest] if name in SUBCOMMANDS:
            run(name, rest)
        case [name, *_]:
            end_with(_unknown(name))


def usage() -> str:
    """What ``mempo --help`` prints."""
    lines = [f"  {name:<12}{subcommand.does}" for name, subcommand in SUBCOMMANDS.items()]
    return USAGE.format(subcommands="\n".join(lines))


def run(name: str, arguments: Sequence[str]) -> None:
    """Runs one subcommand within this process."""
    remember_start(f"{started_by_process()} {name}")
    subcommand = SUBCOMMANDS[name]
    if not subcommand.composed:
        importlib.import_module(subcommand.module).main(arguments)
        return
    # As `python -m` does: Lightning starts its further processes from the main module's name and
    # sys.argv.
    sys.argv[1:] = arguments
    runpy.run_module(subcommand.module, run_name="__main__", alter_sys=True)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, SUBCOMMANDS, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ""
    if "=" in name:
        meant = f"; settings come after one, as in `mempo train {name}`"
    return f"{name}: there is no such subcommand{meant}\n`mempo --help` lists them"
