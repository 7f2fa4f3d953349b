"""``mempo ask MODEL "question"``: a trained agent answers in the terminal."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console

from mempo.ask.loading import load_agent
from mempo.ask.served.options import Serving, add_serving_options, read_serving
from mempo.ask.settings import asking_settings, check_question
from mempo.config import writes_memory
from mempo.runtime.errors import MempoError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.names import short_labels
from mempo.runtime.program import command
from mempo.runtime.stopping import told_when_stopped

if TYPE_CHECKING:
    from mempo.ask.agent import LoadedAgent
    from mempo.trajectory import Trajectory

# A question may hold an equals sign; a setting has no space before its own.
_SETTING: Final = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)
_ENDS: Final = ("exit", "quit")


@dataclass(frozen=True)
class Asked:
    """What the command line asks for. ``question`` ``None``: a conversation; ``-``: standard
    input."""

    models: Sequence[str]
    question: str | None
    overrides: Sequence[str]
    context: str
    as_json: bool
    serving: Serving | None = None


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    asked = _read(arguments)
    if asked.question is not None:
        check_question(asked.question)
    again = f"The same command {'serves' if asked.serving else 'asks'} again."
    with told_when_stopped(lambda: again):
        if asked.serving is not None:
            _serve(asked, asked.serving)
        elif len(asked.models) > 1:
            _compare(asked)
        elif asked.question == "-":
            _answer_lines(asked, sys.stdin)
        elif asked.question is not None:
            with _loaded(asked.models[0], asked) as agent:
                _answer(agent, asked.question, asked)
        else:
            _converse(asked)


def _loaded(model: str, asked: Asked) -> LoadedAgent:
    """Everything that is told on the way goes to standard error: results stand alone."""
    print(f"loading {model}", file=sys.stderr, flush=True)
    with redirect_stdout(sys.stderr):
        agent = load_agent(model, context=asked.context, overrides=asked.overrides)
    for line in agent.told:
        print(line, file=sys.stderr, flush=True)
    return agent


def _serve(asked: Asked, serving: Serving) -> None:
    """What is wrong with the settings is told before seconds of imports."""
    (model,) = asked.models
    asking_settings(model, asked.context, asked.overrides, None)
    from mempo.ask.served.serve import serve

    serve(lambda: _loaded(model, asked), serving)


def _answer(agent: LoadedAgent, question: str, asked: Asked) -> None:
    from mempo.ask.terminal import answer_in_terminal

    if asked.as_json:
        _print_line(agent, agent.ask(question))
    else:
        answer_in_terminal(agent, question, Console(highlight=False))


def _print_line(agent: LoadedAgent, trajectory: Trajectory) -> None:
    from mempo.records.trajectory_records import trajectory_record

    named = {"model": agent.name, "context": agent.context}
    print(json.dumps({**named, **trajectory_record(trajectory)}, ensure_ascii=False), flush=True)


def _answer_lines(asked: Asked, lines: Iterable[str]) -> None:
    """One question a line; blank lines are left out."""
    questions = [line.strip() for line in lines if line.strip()]
    if not questions:
        raise MempoError("standard input holds no question: give one a line")
    from mempo.ask.terminal import ShownQuestion

    with _loaded(asked.models[0], asked) as agent:
        for trajectory in agent.ask_many(questions):
            if asked.as_json:
                _print_line(agent, trajectory)
                continue
            shown = ShownQuestion(Console(highlight=False), agent.has_memory())
            shown.question(trajectory.task.question)
            for one in trajectory.rounds:
                shown.round(one)
            shown.end(trajectory, agent.config)


def _converse(asked: Asked) -> None:
    """One question after the other, each a trajectory of its own: nothing is remembered."""
    with _loaded(asked.models[0], asked) as agent:
        if sys.stdin.isatty():
            _tell_how(agent)
        for question in _typed(sys.stdin):
            try:
                _answer(agent, question, asked)
            except MempoError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
            except KeyboardInterrupt:
                print("\nstopped; ask another, or exit", file=sys.stderr, flush=True)


def _tell_how(agent: LoadedAgent) -> None:
    """What can be typed; of the generated world, whose names nobody knows, with an example."""
    from mempo.ask.passages import example_question

    print("each question starts anew; exit or Ctrl-D ends", file=sys.stderr)
    if (example := example_question(agent.config)) is not None:
        print(f"for example: {example}", file=sys.stderr, flush=True)


def _typed(stream: TextIO) -> Iterator[str]:
    """The questions that are typed, until ``exit`` or Ctrl-D."""
    at_terminal = stream.isatty()
    if at_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 - arrow keys and a history for input()
    while True:
        try:
            line = input("\nquestion: ") if at_terminal and sys.stdout.isatty() else _line(stream)
        except EOFError:
            return
        if line.strip() in _ENDS:
            return
        if line.strip():
            yield line.strip()


def _line(stream: TextIO) -> str:
    line = stream.readline()
    if not line:
        raise EOFError
    return line


def _compare(asked: Asked) -> None:
    """One engine after the other; what is wrong with either model is told before the first."""
    assert asked.question is not None
    for model in asked.models:
        asking_settings(model, asked.context, asked.overrides, None)
    trajectories, configs = [], []
    for model in asked.models:
        with _loaded(model, asked) as agent:
            trajectories.append(agent.ask(asked.question))
            configs.append(agent.config)
            if asked.as_json:
                _print_line(agent, trajectories[-1])
    if asked.as_json:
        return
    from mempo.ask.terminal import coloured, comparison

    console = Console(highlight=False)
    labels = short_labels(asked.models)
    memory = writes_memory(configs[0].evaluation.mode(asked.context).context)
    console.print(comparison(labels, trajectories, configs, coloured(console), memory))


def _read(arguments: Sequence[str] | None) -> Asked:
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    words = list(options.words)
    models = options.compare or words[:1]
    if not models:
        parser.error("name a run folder, a model folder or a hub name")
    rest = words if options.compare else words[1:]
    overrides = [word for word in rest if _SETTING.fullmatch(word)]
    questions = [word for word in rest if word not in overrides]
    if len(questions) > 1:
        parser.error(f"put the question in quotes: {' '.join(questions)!r}")
    question = questions[0] if questions else None
    if options.compare and question in (None, "-"):
        parser.error("--compare takes one question")
    serving = read_serving(options, parser, question)
    return Asked(models, question, overrides, options.context, options.json, serving)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command("ask", "mempo.ask"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Asks a trained agent and shows its rounds as they come (docs/using.md).",
        epilog="without a question: a conversation, in which every question starts anew\n"
        "a run is asked with its own settings and passages; a bare model needs model=, as in\n"
        "  model=pretrained data.corpus=passages.jsonl",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="MODEL QUESTION SETTING=VALUE",
        help="a run folder, a model folder or a hub name; the question in quotes, or - for one a "
        "line on standard input; settings as for `mempo evaluate`",
    )
    parser.add_argument(
        "--context",
        default="memory",
        metavar="NAME",
        help="what a round sees: memory (default), full, a baseline (react, mem1, summary, "
        "retrieval_memory), or one of evaluation.modes",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the trajectory as a line of trajectories.jsonl"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two models side by side on one question"
    )
    add_serving_options(parser)
    return parser


if __name__ == "__main__":
    main()
