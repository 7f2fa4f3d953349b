"""The text protocol of one round: tags, parsing, format rules (specification section 2).

A round is ``<mem>…</mem><think>…</think>`` and one action: ``<answer>…</answer>``, or the call of a
tool in the tool's tag, by default ``<search>…</search>`` and ``<access>…</access>``. Parsing reads
the text once, from left to right, at the top level: a body runs from its opening tag to the first
matching closing tag, and every other tag inside it is plain text. An opening tag that never closes
swallows the rest of the text, so nothing after it is a memory, a thought or an action. Text only;
this module imports no torch.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from mempo.trajectory import SpanKind

SpanName = Literal["memory", "thought", "action", "other"]

MEMORY_TAG = "mem"
THOUGHT_TAG = "think"
ANSWER_TAG = "answer"
OBSERVATION_TAG = "information"

MEMORY_OPEN = f"<{MEMORY_TAG}>"
OBSERVATION_OPEN = f"<{OBSERVATION_TAG}>"
OBSERVATION_CLOSE = f"</{OBSERVATION_TAG}>"

_KINDS: dict[SpanName, SpanKind] = {
    "memory": SpanKind.MEMORY,
    "thought": SpanKind.THOUGHT,
    "action": SpanKind.ACTION,
    "other": SpanKind.OTHER,
}


@dataclass(frozen=True)
class Protocol:
    """The tags of a run: those of every round, and one for each tool (``Config.tools``).

    Without ``memory``, in contexts that have none, ``<mem>`` is no tag but plain text (format rule
    5), and rule 8 does not hold.
    """

    tools: tuple[str, ...] = ("search", "access")
    memory: bool = True

    @cached_property
    def actions(self) -> tuple[str, ...]:
        """The tags of actions, the answer last."""
        return (*self.tools, ANSWER_TAG)

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        written = (MEMORY_TAG, THOUGHT_TAG) if self.memory else (THOUGHT_TAG,)
        return (*written, *self.actions, OBSERVATION_TAG)

    def with_memory(self, memory: bool) -> Protocol:
        """The same tools with memories, or without."""
        return self if memory == self.memory else replace(self, memory=memory)

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Generation stops at these; whether a stop is an action, ``ParsedRound.action_end``
        says."""
        return tuple(f"</{tag}>" for tag in self.actions)

    @cached_property
    def one_action(self) -> str:
        """The actions as a sentence lists them: ``<search>, <access> or <answer>``."""
        *others, last = (f"<{tag}>" for tag in self.actions)
        return f"{', '.join(others)} or {last}"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """An opening or closing tag."""
        return re.compile(f"<(/?)({'|'.join(self.tags)})>")

    @cached_property
    def names(self) -> dict[str, SpanName]:
        """What a span in each tag is."""
        return {
            MEMORY_TAG: "memory",
            THOUGHT_TAG: "thought",
            **dict.fromkeys(self.actions, "action"),
            OBSERVATION_TAG: "other",
        }


DEFAULT_PROTOCOL: Final = Protocol()
"""With the tools search and access."""

TAGS: Final = DEFAULT_PROTOCOL.tags
STOP_STRINGS: Final = DEFAULT_PROTOCOL.stop_strings


@dataclass(frozen=True)
class Span:
    """A top-level piece of a round's text: characters ``[start, end)``, tags and body together.

    ``tag`` is the tag's name, ``None`` for text outside tags. ``closed`` is False for an opening
    tag without its closing tag (the span then reaches to the end of the text) and for a closing tag
    that stands alone.
    """

    kind: SpanName
    start: int
    end: int
    tag: str | None = None
    closed: bool = True


@dataclass(frozen=True)
class ParsedRound:
    """What one round says.

    ``mem``, ``think``: body of the first complete memory and thought, stripped; ``None`` without.
    ``action``, ``argument``: the first complete action outside memory and thought, its argument
    stripped. ``broken_rules``: the numbers of the broken rules 1 to 6 and 8, ascending (rule 7 is a
    rule of the trajectory). ``spans`` tile the text without gap or overlap. ``action_end`` is the
    index just past the closing tag of the action, ``None`` where the round has no action yet: a
    stop inside an unclosed body is no action, and generation goes on.
    """

    number: int
    text: str
    mem: str | None
    think: str | None
    action: str | None
    argument: str | None
    broken_rules: list[int]
    spans: tuple[Span, ...]
    action_end: int | None


def parse_round(text: str, number: int, protocol: Protocol = DEFAULT_PROTOCOL) -> ParsedRound:
    """Parses round ``number`` (counted from 1) of a trajectory (specification section 2).

    ``text`` is policy text only, a prefilled ``<mem>`` included; observations never belong to it.
    Takes time linear in the text. Raises ``ValueError`` for a number below 1.
    """
    if number < 1:
        raise ValueError(f"round number {number}: rounds are counted from 1")
    spans = tuple(_split(text, protocol))
    memories = [span for span in spans if span.tag == MEMORY_TAG and span.closed]
    thoughts = [span for span in spans if span.tag == THOUGHT_TAG and span.closed]
    actions = [span for span in spans if span.kind == "action" and span.closed]
    action = actions[0] if actions else None
    return ParsedRound(
        number=number,
        text=text,
        mem=_body(text, memories[0]) if memories else None,
        think=_body(text, thoughts[0]) if thoughts else None,
        action=action.tag if action else None,
        argument=_body(text, action) if action else None,
        broken_rules=[
            rule
            for rule in _broken_rules(text, number, spans, memories, thoughts, actions)
            if rule != 8 or protocol.memory
        ],
        spans=spans,
        action_end=action.end if action else None,
    )


def unclosed_action(text: str, protocol: Protocol = DEFAULT_PROTOCOL) -> str:
    """The stop text that closes the action which a round's text ends in; empty where it ends in
    none. Servers that leave the stop text out stopped there."""
    spans = parse_round(text, 1, protocol).spans
    last = spans[-1] if spans else None
    if last is None or last.kind != "action" or last.closed or text.startswith("</", last.start):
        return ""
    return f"</{last.tag}>"


def trajectory_broken_rules(
    texts: Sequence[str], protocol: Protocol = DEFAULT_PROTOCOL
) -> list[int]:
    """All rules that a trajectory breaks, ascending: those of its rounds, and rule 7.

    ``texts`` holds the policy text of each round, in order.
    """
    rounds = [parse_round(text, number, protocol) for number, text in enumerate(texts, start=1)]
    broken = {rule for parsed in rounds for rule in parsed.broken_rules}
    if not _ends_with_only_answer(rounds):
        broken.add(7)
    return sorted(broken)


def token_kinds(offsets: Sequence[tuple[int, int]], parsed: ParsedRound) -> list[SpanKind]:
    """The kind of each token: that of the span that holds the token's first character.

    ``offsets`` holds each token's ``[start, end)`` characters in ``parsed.text``. A token without
    characters of its own belongs where it stands (byte tokens that share one character may have
    none); at the end of the text, as the end-of-turn token does, it is ``OTHER``.
    """
    starts = [span.start for span in parsed.spans]
    length = len(parsed.text)
    return [
        _KINDS[parsed.spans[bisect_right(starts, start) - 1].kind]
        if 0 <= start < length
        else SpanKind.OTHER
        for start, _ in offsets
    ]


def memory_token_range(
    offsets: Sequence[tuple[int, int]], parsed: ParsedRound
) -> tuple[int, int] | None:
    """The tokens ``[first, last + 1)`` of the round's first complete memory, tags included.

    ``None`` without a complete memory. ``offsets`` are ascending, as in ``token_kinds``.
    """
    memory = next((s for s in parsed.spans if s.tag == MEMORY_TAG and s.closed), None)
    if memory is None:
        return None
    inside = [i for i, (start, _) in enumerate(offsets) if memory.start <= start < memory.end]
    return (inside[0], inside[-1] + 1) if inside else None


def _split(text: str, protocol: Protocol) -> Iterator[Span]:
    """Cuts the text into top-level spans. Each character is searched at most twice."""
    position = 0
    while (match := protocol.pattern.search(text, position)) is not None:
        start, tag = match.start(), match.group(2)
        if start > position:
            yield Span("other", position, start)
        if match.group(1):
            position = match.end()
            yield Span("other", start, position, tag, closed=False)
            continue
        closing = f"</{tag}>"
        found = text.find(closing, match.end())
        if found < 0:
            yield Span(protocol.names[tag], start, len(text), tag, closed=False)
            return
        position = found + len(closing)
        yield Span(protocol.names[tag], start, position, tag)
    if position < len(text):
        yield Span("other", position, len(text))


def _body(text: str, span: Span) -> str:
    assert span.tag is not None
    return text[span.start + len(span.tag) + 2 : span.end - len(span.tag) - 3].strip()


def _broken_rules(
    text: str,
    number: int,
    spans: Sequence[Span],
    memories: Sequence[Span],
    thoughts: Sequence[Span],
    actions: Sequence[Span],
) -> list[int]:
    """Rules 1 to 6 and 8 of specification section 2."""
    written = [span for span in spans if span.tag or text[span.start : span.end].strip()]
    one_thought = len(thoughts) == 1 and bool(_body(text, thoughts[0]))
    thought_first = not (thoughts and actions) or thoughts[0].start < actions[0].start
    one_memory = len(memories) == 1 and bool(_body(text, memories[0]))
    memory_first = bool(memories) and written[0] is memories[0]
    broken = {
        1: any(not span.closed for span in spans),
        2: len(actions) != 1,
        3: not (one_thought and thought_first),
        4: bool(actions) and not _body(text, actions[0]),
        5: any(span.tag is None for span in written),
        6: any(_opens_observation(text, span) for span in spans),
        8: number > 1 and not (one_memory and memory_first),
    }
    return [rule for rule, is_broken in broken.items() if is_broken]


def _opens_observation(text: str, span: Span) -> bool:
    return span.tag == OBSERVATION_TAG and text.startswith(OBSERVATION_OPEN, span.start)


def _ends_with_only_answer(rounds: Sequence[ParsedRound]) -> bool:
    """Rule 7: over the trajectory exactly one answer, and it ends the last round."""
    answers = sum(s.tag == ANSWER_TAG and s.closed for parsed in rounds for s in parsed.spans)
    if answers != 1:
        return False
    last = rounds[-1]
    return last.action == ANSWER_TAG and not last.text[last.action_end :].strip()
