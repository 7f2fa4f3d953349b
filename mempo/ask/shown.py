"""A round and an ending as a terminal shows them: texts with styles, no control characters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from mempo.agent.protocol import OBSERVATION_CLOSE, OBSERVATION_OPEN
from mempo.config import Config
from mempo.inspect.differences import memory_difference
from mempo.trajectory import Ending, Round, Trajectory

Row = tuple[str, Text]
"""What a text is, and the text."""

OBSERVATION_CHARS: Final = 800
"""Characters of a tool's result that are shown; ``--json`` has all."""

# What moves a terminal's cursor, changes its colours or turns its text round.
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_STYLES: Final = {"same": "", "added": "bold green", "removed": "strike red"}
_MARKS: Final = {"same": "{}", "added": "{{+{}+}}", "removed": "[-{}-]"}


def visible(text: str) -> str:
    """The text with control characters as a question mark in a box."""
    return _CONTROL.sub("\ufffd", text)


def round_rows(one: Round, before: str | None, colours: bool, memory: bool = True) -> Iterator[Row]:
    """Memory, thought, action and what came back. ``before`` is the last memory: what changed is
    coloured, and without ``colours`` marked as ``{+new+}`` and ``[-gone-]``. ``memory``: whether
    there should be one."""
    if one.mem is not None:
        yield "memory", _memory(before, one.mem, colours)
    elif memory and one.number > 1:
        yield "memory", Text("none was written", "dim")
    if one.think is not None:
        yield "thought", Text(visible(one.think.strip()), "italic")
    if one.action is None:
        yield "wrote", Text(_cut(one.text), "yellow")
    elif one.action != "answer":  # which ends the trajectory, and is shown there
        yield one.action, Text(visible(one.argument or ""), "bold cyan")
    if one.observation is not None:
        text = one.observation.removeprefix(OBSERVATION_OPEN).removesuffix(OBSERVATION_CLOSE)
        yield "result", Text(_cut(text), "red" if one.tool_failed else "dim")


def _memory(before: str | None, after: str, colours: bool) -> Text:
    if before is None:
        return Text(visible(after.strip()))
    shown = Text()
    for change, piece in memory_difference(visible(before), visible(after)):
        words = piece.rstrip()
        shown.append(words if colours else _MARKS[change].format(words), _STYLES[change])
        shown.append(piece[len(words) :] or " ")
    shown.rstrip()
    return shown


def _cut(text: str) -> str:
    text = visible(text.strip())
    more = len(text) - OBSERVATION_CHARS
    return text if more <= 0 else f"{text[:OBSERVATION_CHARS]} … ({more:,} more characters)"


def ending_row(trajectory: Trajectory, config: Config) -> Row:
    """The answer, or in a sentence why there is none."""
    if trajectory.ending == Ending.ANSWERED:
        return "answer", Text(visible(trajectory.answer or ""), "bold green")
    limits = config.evaluation
    reasons = {
        Ending.MAX_ROUNDS: f"evaluation.max_rounds={limits.max_rounds} is reached",
        Ending.RESPONSE_BUDGET: (
            f"evaluation.max_response_tokens={limits.max_response_tokens} is reached"
        ),
        Ending.CONTEXT_BUDGET: "the model's context is full (engine.max_model_len)",
        Ending.NO_ACTION: _no_action(config),
    }
    reason = "unknown" if trajectory.ending is None else reasons[trajectory.ending]
    return "no answer", Text(reason, "yellow")


def _no_action(config: Config) -> str:
    words = {"search": "searches", "access": "opens a page"}
    known = [words.get(tool.tag, f"calls {tool.tag}") for tool in config.tools]
    return f"the last round neither {', '.join(known)} nor answers"


def cost_row(trajectory: Trajectory) -> Row:
    """What the question took."""
    parts = [
        _counted(len(trajectory.rounds), "round"),
        _counted(trajectory.tool_calls, "tool call"),
        f"{trajectory.total_tokens:,} tokens over all rounds",
        f"{trajectory.peak_tokens:,} in the largest",
    ]
    if trajectory.repeated_rounds:
        parts.insert(1, f"{trajectory.repeated_rounds} of them as an earlier one")
    return "used", Text(", ".join(parts), "dim")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
