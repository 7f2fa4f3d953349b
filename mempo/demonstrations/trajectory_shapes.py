"""One row of a file of trajectories, in any of the shapes that people have (docs/cold_start.md).

- ``messages`` or ``conversations``: chat messages, ``role`` and ``content`` or ``from`` and
  ``value``
- ``rounds``: a line of a run's own ``trajectories.jsonl``
- ``memory``: what ASearcher's trainer dumps, records of a ``type`` and a ``text``
- ``q``, ``r0``, ``i0``, ``r1``, …: what MEM1's rollouts write

A row becomes a question and rounds. What was said is kept to the letter; whether it keeps the rules
of the protocol, ``trajectory_files.py`` looks at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mempo.agent.protocol import (
    ANSWER_TAG,
    DEFAULT_PROTOCOL,
    OBSERVATION_CLOSE,
    OBSERVATION_OPEN,
    OBSERVATION_TAG,
    Protocol,
    parse_round,
)
from mempo.demonstrations.asked_question import Asked, PromptFrame, asked_question
from mempo.row_files.rows import Row, seen

Speaker = Literal["system", "user", "assistant", "observation"]

_SPEAKERS: Final[Mapping[str, Speaker]] = {
    "system": "system",
    **dict.fromkeys(("user", "human", "prompt"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "llm_gen"), "assistant"),
    **dict.fromkeys(
        (
            *("observation", "tool", "tool_response", "tool_output", "function"),
            *("function_response", "ipython", "environment", "information"),
            *("search_results", "webpage"),
        ),
        "observation",
    ),
}
_CHATS: Final = ("messages", "conversations")
_REWARDS: Final = ("reward", "Exact_match")
_THINK: Final = "<think>\n"
"""How ASearcher's prompt begins every generation; its records do not repeat it."""


@dataclass(frozen=True)
class WrittenRound:
    """What the model wrote in one round, and the observation that came back, without its
    ``<information>`` tags; ``None`` after the last."""

    text: str
    observation: str | None


@dataclass(frozen=True)
class WrittenTrajectory:
    """A row as it was read. ``reward`` is ``None`` where the row tells none. ``place``: its file
    and line. ``system`` and ``instructions`` are not used: the row's own system message, and
    whether its own instructions stood around the question."""

    question: str
    rounds: tuple[WrittenRound, ...]
    reward: float | None
    place: str
    system: str | None = None
    instructions: bool = False


@dataclass(frozen=True)
class _Message:
    speaker: Speaker
    text: str


def written_trajectory(
    row: Row, frame: PromptFrame, protocol: Protocol = DEFAULT_PROTOCOL
) -> WrittenTrajectory:
    """The row's question and rounds; ``frame`` is the run's own prompt, taken off the question.

    Raises ``DataError`` with the row's place when it has none of the shapes.
    """
    chat, system = row.first(*_CHATS), None
    if chat is not None:
        messages = _chat(row, chat)
        system = messages[0].text if messages[0].speaker == "system" else None
        asked, rounds = _spoken(row, messages, frame, protocol)
    elif row.first("rounds") is not None:
        asked, rounds = Asked(row.text("question")), _own_rounds(row)
    elif row.first("memory") is not None:
        asked, rounds = _spoken(row, _records(row), frame, protocol)
    elif row.first("q") is not None and row.first("r0") is not None:
        asked, rounds = asked_question(row, row.text("q"), frame), _numbered_rounds(row)
    else:
        raise row.fault(
            'no trajectory: give the chat in "messages" (role, content) or "conversations" '
            "(from, value), or a run's own trajectories.jsonl"
        )
    if not rounds:
        raise row.fault("the trajectory has no round: no assistant's turn follows the question")
    return WrittenTrajectory(
        asked.question, tuple(rounds), _reward(row), row.place, system, asked.taken_off
    )


# Shapes


def _chat(row: Row, name: str) -> list[_Message]:
    entries = _listed(row, name)
    return [
        _message(row, f"message {number}", entry, ("role", "from"), ("content", "value"))
        for number, entry in enumerate(entries, start=1)
    ]


def _records(row: Row) -> list[_Message]:
    """ASearcher's: what it generates up to a tool call comes in pieces, stopped at ``</think>``."""
    messages: list[_Message] = []
    for number, entry in enumerate(_listed(row, "memory"), start=1):
        message = _message(row, f"record {number}", entry, ("type",), ("text",))
        last = messages[-1] if messages else None
        if message.speaker == "assistant" and last is not None and last.speaker == "assistant":
            messages[-1] = _Message("assistant", last.text + message.text)
        else:
            messages.append(message)
    return [
        _Message(one.speaker, _with_thought_opened(one.text)) if one.speaker == "assistant" else one
        for one in messages
    ]


def _with_thought_opened(text: str) -> str:
    closing = text.find("</think>")
    return _THINK + text if closing >= 0 and "<think>" not in text[:closing] else text


def _own_rounds(row: Row) -> list[WrittenRound]:
    rounds = []
    for number, entry in enumerate(_listed(row, "rounds"), start=1):
        named = f"round {number}"
        text = _text(row, named, entry, "text")
        given = entry.get("observation")
        if given is not None and not isinstance(given, str):
            raise row.fault(f'{named}: "observation" must be a text or null, it is {seen(given)}')
        rounds.append(WrittenRound(text, None if given is None else unwrapped(given)))
    return rounds


def _numbered_rounds(row: Row) -> list[WrittenRound]:
    """MEM1's."""
    rounds = []
    number = 0
    while row.first(f"r{number}") is not None:
        seen_next = row.optional_text(f"i{number}")
        observation = unwrapped(seen_next) if seen_next else None
        rounds.append(WrittenRound(row.text(f"r{number}"), observation))
        number += 1
    return rounds


# Messages


def _spoken(
    row: Row, messages: list[_Message], frame: PromptFrame, protocol: Protocol
) -> tuple[Asked, list[WrittenRound]]:
    """The question and the rounds of a chat. A system message is the run's own business."""
    if messages and messages[0].speaker == "system":
        messages = messages[1:]
    if not messages or messages[0].speaker != "user":
        who = messages[0].speaker if messages else "nobody"
        raise row.fault(f"the chat must begin with the user's question, {who} begins")
    asked = asked_question(row, messages[0].text, frame)
    rounds: list[WrittenRound] = []
    for number, message in enumerate(messages[1:], start=2):
        if message.speaker == "system":
            raise row.fault(f"message {number}: a system message inside the trajectory")
        waits = bool(rounds) and rounds[-1].observation is None
        if message.speaker == "assistant":
            if waits:
                raise row.fault(
                    f"message {number}: two assistant's turns follow each other without an "
                    "observation between them"
                )
            rounds += _split(message.text, protocol)
        elif not waits:
            raise row.fault(
                f"message {number}: an observation must follow an assistant's turn, and none "
                "came before it"
            )
        else:
            rounds[-1] = WrittenRound(rounds[-1].text, unwrapped(message.text))
    return asked, rounds


def _split(text: str, protocol: Protocol) -> Iterator[WrittenRound]:
    """The rounds of an assistant's turn: one, or several where ``<information>`` follows a tool's
    call (as in Search-R1's single texts). Elsewhere such a tag is the model's own."""
    start, acted = 0, False
    for span in parse_round(text, 1, protocol).spans:
        if span.tag == OBSERVATION_TAG and span.closed and acted:
            yield WrittenRound(
                text[start : span.start].rstrip(), unwrapped(text[span.start : span.end])
            )
            start, acted = span.end, False
        elif span.tag is not None or text[span.start : span.end].strip():
            acted = span.kind == "action" and span.closed and span.tag != ANSWER_TAG
    rest = text[start:].strip() if start else text
    if rest.strip() or not start:
        yield WrittenRound(rest, None)


def unwrapped(text: str) -> str:
    """An observation without its ``<information>`` tags, to the letter where they hold all of
    it."""
    whole = text.strip()
    inside = whole.removeprefix(OBSERVATION_OPEN).removesuffix(OBSERVATION_CLOSE)
    if len(inside) == len(whole) - len(OBSERVATION_OPEN) - len(OBSERVATION_CLOSE):
        return inside
    return text.replace(OBSERVATION_OPEN, "").replace(OBSERVATION_CLOSE, "").strip()


def _message(row: Row, named: str, entry: Any, who: Iterable[str], what: Iterable[str]) -> _Message:
    if not isinstance(entry, Mapping):
        raise row.fault(f"{named} must be an object, it is {seen(entry)}")
    role = next((entry[name] for name in who if entry.get(name) is not None), None)
    speaker = _SPEAKERS.get(role.lower()) if isinstance(role, str) else None
    if speaker is None:
        raise row.fault(
            f"{named}: the {' or '.join(who)} {seen(role)} is nobody's: write system, user, "
            "assistant or tool"
        )
    name = next((name for name in what if name in entry), next(iter(what)))
    if entry.get(name) is None and entry.get("tool_calls"):
        raise row.fault(
            f"{named}: its action stands in tool_calls: write it into the text, as "
            "<search>…</search>, <access>…</access> or <answer>…</answer>"
        )
    return _Message(speaker, _text(row, named, entry, name))


def _text(row: Row, named: str, entry: Any, name: str) -> str:
    """A text, or a list of parts that hold one each."""
    if not isinstance(entry, Mapping):
        raise row.fault(f"{named} must be an object, it is {seen(entry)}")
    value = entry.get(name)
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value
    ):
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise row.fault(f'{named}: "{name}" must be a text, it is {seen(value)}')
    if not value.strip():
        raise row.fault(f'{named}: "{name}" is blank')
    return value


def _listed(row: Row, name: str) -> list[Any]:
    """A field's list, which tables may hold written as JSON."""
    value = row.fields[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise row.fault(f'the field "{name}" is a text that is not JSON ({error})') from None
    if not isinstance(value, list) or not value:
        raise row.fault(f'the field "{name}" must be a list of turns, it is {seen(value)}')
    return value


def _reward(row: Row) -> float | None:
    name = row.first(*_REWARDS)
    if name is None:
        return None
    value = row.fields[name]
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
        return float(value)
    raise row.fault(f'the field "{name}" must be a number, it is {seen(value)}')
