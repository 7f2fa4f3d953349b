"""Parsing a round and the format rules (specification section 2)."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.agent.protocol import (
    STOP_STRINGS,
    TAGS,
    memory_token_range,
    parse_round,
    token_kinds,
    trajectory_broken_rules,
)
from mempo.trajectory import SpanKind
from tests.support.cases_path import load_cases

M, T, A, O = SpanKind.MEMORY, SpanKind.THOUGHT, SpanKind.ACTION, SpanKind.OTHER  # noqa: E741

SEARCH = "<think>b</think><search>q</search>"
ANSWER = "<think>b</think><answer>x</answer>"


@pytest.mark.parametrize("case", load_cases("rounds.json"), ids=lambda case: case["text"][:40])
def test_cases(case: dict[str, Any]) -> None:
    parsed = parse_round(case["text"], case["round"])
    fields = ("mem", "think", "action", "argument", "broken_rules")
    assert {name: getattr(parsed, name) for name in fields} == {n: case[n] for n in fields}


@pytest.mark.parametrize(
    ("number", "text", "broken"),
    [
        # Rule 1: an unclosed tag swallows what follows; a closing tag stands alone.
        (2, "<mem>a<think>b</think><search>q</search>", [1, 2, 3, 8]),
        (2, f"</mem>{SEARCH}", [1, 8]),
        (1, f"</mem>{SEARCH}", [1]),
        (1, f"{SEARCH}<search>again", [1]),
        (1, "<think>b</think><search>a<answer>x</answer>", [1, 2]),
        (1, f"</information>{SEARCH}", [1]),
        # The first matching closing tag ends the body, whatever was opened inside it.
        (2, f"<mem>a<mem>b</mem>c</mem>{SEARCH}", [1, 5]),
        (2, f"<mem><mem>a</mem>{SEARCH}", []),
        (1, "<think>a</mem>b</search></think><search>q</search>", []),
        (1, "<think><information>x</information></think><search>q</search>", []),
        # Rule 2.
        (1, "<think>b</think><answer>a</answer><answer>b</answer>", [2]),
        (1, "<think>b</think><access>p</access><search>q</search>", [2]),
        # Rule 3: exactly one, with something in it, before the action.
        (1, "<think>a</think><think>b</think><search>q</search>", [3]),
        (1, "<think> </think><think>b</think><search>q</search>", [3]),
        (1, "<search>q</search><think>b</think>", [3]),
        (1, "<think>b</think><search>q</search><think>c</think>", [3]),
        # Rule 4 is about the round's action, which is the first.
        (1, "<think>b</think><search>\n</search><search>q</search>", [2, 4]),
        (1, "<think>b</think><search>q</search><search></search>", [2]),
        # Rule 5: text before, between and after; tags in other case or with spaces are text.
        (1, f"I think {SEARCH}", [5]),
        (1, f"{SEARCH} and then", [5]),
        (1, f"<Mem>a</Mem>{SEARCH}", [5]),
        (1, f"<mem >a</mem >{SEARCH}", [5]),
        (1, f" \n\t{SEARCH}\n", []),
        # Rule 6, also unclosed.
        (1, "<think>b</think><information>Paris", [1, 2, 6]),
        # Rule 8 begins with round 2: in round 1 a memory may be there, doubled, blank or late.
        (1, f"<mem>a</mem><mem>b</mem>{SEARCH}", []),
        (1, f"<mem> </mem>{SEARCH}", []),
        (1, "<think>b</think><mem>a</mem><search>q</search>", []),
        (2, f"\n<mem>a</mem>{SEARCH}", []),
        (2, f"well <mem>a</mem>{SEARCH}", [5, 8]),
        (2, f"<mem></mem><mem>a</mem>{SEARCH}", [8]),
        (2, f"{SEARCH}<mem>a</mem>", [8]),
        (2, "", [2, 3, 8]),
        (2, "</think></mem></search>", [1, 2, 3, 8]),
    ],
)
def test_rules(number: int, text: str, broken: list[int]) -> None:
    assert parse_round(text, number).broken_rules == broken


def test_first_of_each_counts_and_is_stripped() -> None:
    text = "<mem> a\n</mem><mem>b</mem><think>\tc </think><think>d</think>"
    parsed = parse_round(text + "<access> p </access><answer>x</answer>", 2)
    assert (parsed.mem, parsed.think, parsed.action, parsed.argument) == ("a", "c", "access", "p")


def test_spans_tile_the_text() -> None:
    text = "<mem>a</mem>\n<think>b</think>so</search><search>q</search><information>i"
    parsed = parse_round(text, 2)
    assert [(s.kind, text[s.start : s.end], s.closed) for s in parsed.spans] == [
        ("memory", "<mem>a</mem>", True),
        ("other", "\n", True),
        ("thought", "<think>b</think>", True),
        ("other", "so", True),
        ("other", "</search>", False),
        ("action", "<search>q</search>", True),
        ("other", "<information>i", False),
    ]
    assert parsed.action_end == text.index("<information>")


@pytest.mark.parametrize("opened", ["<mem>", "<think>"])
@pytest.mark.parametrize("stop", STOP_STRINGS)
def test_stop_inside_unclosed_memory_or_thought_is_no_action(opened: str, stop: str) -> None:
    call = stop.replace("/", "") + "q" + stop
    assert parse_round(f"{opened}a{call}", 1).action_end is None
    finished = f"{opened}a{call}{opened.replace('<', '</')}{call}"
    assert parse_round(finished, 1).action_end == len(finished)


@pytest.mark.parametrize("text", ["<search>foo", "<search></search>", "</search>", "<search>", "<"])
def test_verl_7044_trl_4890_unclosed_or_empty_call(text: str) -> None:
    parsed = parse_round(text, 1)
    assert parsed.broken_rules
    assert parsed.argument in (None, "")


def test_verl_6542_python_source_stays_a_string() -> None:
    query = "__import__('os').system('exit 1') or {'a': [1]}"
    parsed = parse_round(f"<think>b</think><search>{query}</search>", 1)
    assert parsed.argument == query


def test_open_r1_418_two_answers_break_the_format() -> None:
    two_in_one = ["<think>b</think><answer>x</answer><answer>y</answer>"]
    one_each = [ANSWER, f"<mem>a</mem>{ANSWER}"]
    assert trajectory_broken_rules(two_in_one) == [2, 7]
    assert trajectory_broken_rules(one_each) == [7]


@pytest.mark.parametrize(
    ("texts", "broken"),
    [
        ([ANSWER], []),
        ([SEARCH, f"<mem>a</mem>{ANSWER}"], []),
        ([SEARCH, f"<mem>a</mem>{ANSWER}\n"], []),
        ([SEARCH, f"<mem>a</mem>{SEARCH}"], [7]),
        ([ANSWER, f"<mem>a</mem>{SEARCH}"], [7]),
        ([SEARCH, f"<mem>a</mem>{ANSWER} bye"], [5, 7]),
        ([SEARCH, ANSWER], [8]),
        (["<think>b</think><search>q</search><answer>x</answer>"], [2, 7]),
        (["<think><answer>x</answer></think><search>q</search>"], [7]),
        ([], [7]),
    ],
)
def test_rule_7_over_the_trajectory(texts: list[str], broken: list[int]) -> None:
    assert trajectory_broken_rules(texts) == broken


def test_round_number_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        parse_round("", 0)


@pytest.mark.parametrize(
    "text",
    [
        "<mem>" * 100_000,
        "</mem>" * 100_000,
        "<mem></mem>" * 100_000,
        "<mem>a</mem>x" * 50_000 + "<think>" * 50_000,
        "<" * 500_000,
        " " * 500_000 + "x",
    ],
)
def test_adversarial_text_takes_linear_time(text: str) -> None:
    started = time.process_time()
    parsed = parse_round(text, 2)
    token_kinds([(i, i + 1) for i in range(0, len(text), 5)], parsed)
    assert time.process_time() - started < 5.0  # quadratic: hours


def test_module_imports_no_torch() -> None:
    code = (
        "import sys, mempo.agent.protocol, mempo.learning.rewards, mempo.agent.context; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def cut(text: str, *pieces: str) -> list[tuple[int, int]]:
    """Offsets of tokens that spell the text."""
    assert "".join(pieces) == text
    ends = [sum(len(p) for p in pieces[: i + 1]) for i in range(len(pieces))]
    return [(end - len(piece), end) for piece, end in zip(pieces, ends, strict=True)]


def test_open_instruct_1869_merged_tag_tokens_belong_to_their_first_character() -> None:
    text = "<mem>a</mem><think>b</think>\n<search>q</search>"
    pieces = [
        "<mem",
        ">a",
        "</",
        "mem",
        "><",
        "think",
        ">b</",
        "think",
        ">\n",
        "<search>q</search>",
    ]
    parsed = parse_round(text, 2)
    offsets = cut(text, *pieces)
    assert token_kinds(offsets, parsed) == [M, M, M, M, M, T, T, T, T, A]
    assert memory_token_range(offsets, parsed) == (0, 5)


def test_tokens_without_characters() -> None:
    text = "<mem>é</mem><search>q</search>"
    parsed = parse_round(text, 2)
    offsets = [(0, 5), (5, 5), (5, 6), (6, 12), (12, len(text)), (len(text), len(text))]
    assert token_kinds(offsets, parsed) == [M, M, M, M, A, O]
    assert memory_token_range(offsets, parsed) == (0, 4)
    assert token_kinds([(0, 0)], parse_round("", 1)) == [O]


def test_memory_token_range_is_the_first_complete_memory() -> None:
    text = "\n<mem>a</mem><mem>b</mem>"
    parsed = parse_round(text, 2)
    assert memory_token_range(cut(text, "\n", "<mem>", "a", "</mem>", "<mem>b</mem>"), parsed) == (
        1,
        4,
    )
    unclosed = parse_round("<mem>a", 2)
    assert memory_token_range([(0, 5), (5, 6)], unclosed) is None
    assert token_kinds([(0, 5), (5, 6)], unclosed) == [M, M]


pieces = st.lists(
    st.one_of(
        st.sampled_from([f"<{tag}>" for tag in TAGS] + [f"</{tag}>" for tag in TAGS]),
        st.sampled_from(["a", " ", "\n", "<", "</", "mem>", "<MEM>", "é", "😀", ";"]),
        st.text(max_size=3),
    ),
    max_size=20,
)


@given(pieces, st.integers(1, 3))
def test_property_spans_cover_every_token_once(parts: list[str], number: int) -> None:
    text = "".join(parts)
    parsed = parse_round(text, number)
    ends = [0] + [span.end for span in parsed.spans]
    assert [span.start for span in parsed.spans] == ends[:-1]
    assert ends[-1] == len(text)
    assert all(span.start < span.end for span in parsed.spans)
    offsets = cut(text, *parts)
    kinds = token_kinds(offsets, parsed)
    assert len(kinds) == len(parts)
    assert all(kind in (M, T, A, O) for kind in kinds)
    found = memory_token_range(offsets, parsed)
    if found is not None:
        assert set(kinds[slice(*found)]) == {M}


@given(pieces, st.integers(1, 3))
def test_property_fields_agree_with_each_other(parts: list[str], number: int) -> None:
    text = "".join(parts)
    parsed = parse_round(text, number)
    assert parsed.broken_rules == sorted(set(parsed.broken_rules))
    assert set(parsed.broken_rules) <= {1, 2, 3, 4, 5, 6, 8}
    assert (parsed.action is None) == (parsed.argument is None) == (parsed.action_end is None)
    if parsed.action_end is not None:
        assert text[: parsed.action_end].endswith(f"</{parsed.action}>")
    for body in (parsed.mem, parsed.think, parsed.argument):
        assert body is None or (body == body.strip() and body in text)
    if not parsed.broken_rules:
        assert parsed.think
        assert parsed.argument
        assert number == 1 or parsed.mem


@given(pieces, st.integers(1, 3))
def test_property_an_action_stays_one_when_text_follows(parts: list[str], number: int) -> None:
    """Cutting the text just after the action keeps the action: the stop decides for good."""
    text = "".join(parts)
    parsed = parse_round(text, number)
    if parsed.action_end is not None:
        stopped = parse_round(text[: parsed.action_end], number)
        assert (stopped.action, stopped.argument, stopped.action_end) == (
            parsed.action,
            parsed.argument,
            parsed.action_end,
        )
        assert parse_round(text[: parsed.action_end - 1], number).action is None


def slow_regions(text: str) -> list[tuple[str, str, int]]:
    """Section 2 by the letter, character by character: (tag, body, end) of every closed body at
    the top level, in order."""
    regions: list[tuple[str, str, int]] = []
    here = 0
    while here < len(text):
        opened = next((tag for tag in TAGS if text[here:].startswith(f"<{tag}>")), None)
        if opened is None:
            here += 1
            continue
        body = here + len(opened) + 2
        end = body
        while end < len(text) and not text[end:].startswith(f"</{opened}>"):
            end += 1
        if end == len(text):
            return regions
        here = end + len(opened) + 3
        regions.append((opened, text[body:end].strip(), here))
    return regions


@given(pieces, st.integers(1, 3))
def test_property_against_a_slow_reader_by_the_letter(parts: list[str], number: int) -> None:
    """Nothing inside a memory, a thought or an observation is an action."""
    text = "".join(parts)
    parsed = parse_round(text, number)
    regions = slow_regions(text)
    actions = [entry for entry in regions if entry[0] in ("search", "access", "answer")]
    expected = actions[0] if actions else (None, None, None)
    assert (parsed.action, parsed.argument, parsed.action_end) == expected
    for tag, found in (("mem", parsed.mem), ("think", parsed.think)):
        bodies = [body for name, body, _ in regions if name == tag]
        assert found == (bodies[0] if bodies else None)
    assert parse_round(parsed.text, number) == parsed


@given(pieces, pieces, st.sampled_from(["mem", "think", "information"]))
def test_property_what_stands_inside_a_body_acts_on_nothing(
    inside: list[str], after: list[str], tag: str
) -> None:
    body = "".join(inside).replace(f"</{tag}>", "")
    rest = "".join(after)
    if f"</{tag}>" in body:
        return  # The pieces around a removed tag made another.
    alone, behind = parse_round(rest, 2), parse_round(f"<{tag}>{body}</{tag}>{rest}", 2)
    assert (behind.action, behind.argument) == (alone.action, alone.argument)


body_text = st.text(min_size=1, max_size=8).filter(lambda s: s.strip() and "</" not in s)


@given(body_text, body_text, st.sampled_from(["search", "access", "answer"]), body_text)
def test_property_well_formed_rounds_break_nothing(
    memory: str, thought: str, tag: str, argument: str
) -> None:
    text = f"<mem>{memory}</mem><think>{thought}</think><{tag}>{argument}</{tag}>"
    parsed = parse_round(text, 2)
    assert parsed.broken_rules == []
    assert parsed.mem == memory.strip()
    assert parsed.think == thought.strip()
    assert parsed.argument == argument.strip()
