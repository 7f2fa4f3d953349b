"""``mempo collect MODEL --output FILE``: a teacher's trajectories for the supervised start."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

from mempo.collect.selection import Selection
from mempo.collect.settings import Teacher, Wanted, collecting_settings, data_overrides
from mempo.command.home import use_writable_home
from mempo.runtime.disk import require_writable
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command
from mempo.runtime.stopping import told_when_stopped

_SETTING: Final = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    wanted = read(arguments)
    require_writable(str(wanted.output.parent), "--output")
    settings = collecting_settings(wanted)
    use_writable_home(settings.config.cache_dir)
    for line in settings.told:
        print(line, flush=True)
    from mempo.runtime.library_warnings import quiet_libraries

    quiet_libraries()
    from mempo.collect.collecting import collect
    from mempo.evaluation import standalone

    with told_when_stopped(lambda: "The same command goes on."):
        collect(wanted, settings, standalone.start_engine)
    print(f"written to {wanted.output}", flush=True)


def read(arguments: Sequence[str] | None) -> Wanted:
    """What the command line asks for."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    overrides = [word for word in options.words if _SETTING.fullmatch(word)]
    models = [word for word in options.words if word not in overrides]
    if options.teacher != "model" and models:
        parser.error(f"--teacher {options.teacher} takes no model: {models[0]}")
    if options.teacher == "model" and len(models) != 1:
        parser.error("name one run folder, model folder, hub name or served model, as the teacher")
    _check_numbers(parser, options)
    if options.data is not None:
        overrides = [*data_overrides(options.data), *overrides]
    share = None if options.share is None else (options.share[0], options.share[1])
    return Wanted(
        model=models[0] if models else None,
        output=options.output.expanduser(),
        overrides=overrides,
        teacher=options.teacher,
        # A program says the same every time.
        attempts=options.attempts or (4 if options.teacher == "model" else 1),
        tasks=options.tasks,
        split=options.split,
        selection=Selection(options.metric, options.threshold, share, options.per_question),
    )


def _check_numbers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name in ("attempts", "tasks", "per_question"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value}: at least 1")
    if options.teacher != "model" and (options.attempts or 1) > 1:
        parser.error(
            f"--attempts {options.attempts}: --teacher {options.teacher} says the same every time, "
            "so it has one attempt"
        )
    if not 0.0 < options.threshold <= 1.0:
        parser.error(f"--threshold {options.threshold:g}: above 0, at most 1")
    if options.share is not None and not 0.0 <= options.share[0] <= options.share[1] <= 1.0:
        parser.error("--share LOW HIGH: two shares from 0 to 1, the lower one first")
    if options.output.suffix != ".jsonl":
        parser.error(f"--output {options.output}: a file of JSON lines, with the ending .jsonl")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command("collect", "mempo.collect"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Lets a teacher answer training questions with the real tools, and writes its "
        "right attempts\nas a file for sft.path (docs/cold_start.md).",
        epilog="a model is asked as in training (rollout=, rollout.temperature, model=, retriever=)"
        "\na stopped call goes on with the same command; what is kept may be changed afterwards\n"
        "  mempo collect runs/A --output own.jsonl --attempts 8\n"
        "  mempo collect gpt-x --output teacher.jsonl engine=openai engine.url=http://HOST/v1 \\\n"
        "      --data questions.jsonl data.corpus=passages.jsonl\n"
        "then: mempo train sft=file sft.path=teacher.jsonl …",
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="MODEL SETTING=VALUE",
        help="the teacher: a run folder, a model folder, a hub name, or with engine=openai a "
        "server's name for a model; settings as for `mempo evaluate`")  # fmt: skip
    add("--output", type=Path, required=True, metavar="FILE.jsonl", help="the file to make")
    add("--data", metavar="FORMAT_OR_FILE",
        help="a format of conf/data/, or a file of questions (default: the run's own)")  # fmt: skip
    add("--teacher", choices=get_args(Teacher), default="model",
        help="in place of a model, world: the oracle of the generated world; gold: one that knows "
        "the answers, and shows where they stand")  # fmt: skip
    add("--attempts", type=int, metavar="N",
        help="at each question (default: 4; --teacher world and gold have one)")  # fmt: skip
    add("--tasks", type=int, metavar="N", help="the first so many questions (default: all)")
    add("--split", choices=("train", "heldout"), default="train",
        help="which questions (default: train)")  # fmt: skip
    add("--metric", choices=("exact_match", "f1", "f1_set"), default="exact_match",
        help="what judges an answer (default: exact_match)")  # fmt: skip
    add("--threshold", type=float, default=1.0, metavar="X",
        help="the least metric of a right answer (default: 1)")  # fmt: skip
    add("--share", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help="keep questions of whose attempts such a share is right (default: all that are "
        "neither always nor never right; with one attempt, all right ones)")  # fmt: skip
    add("--per-question", type=int, default=1, metavar="K",
        help="keep at most so many of a question, the shortest (default: 1)")  # fmt: skip
    return parser


if __name__ == "__main__":
    main()
