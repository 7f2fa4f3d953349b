"""The context ``react``: no memory anywhere (specification section 9)."""

from __future__ import annotations

import pytest

from mempo.agent.prompts import check_template, load_template
from mempo.agent.protocol import Protocol, parse_round, trajectory_broken_rules
from mempo.config import DEFAULT_TOOLS
from mempo.engine.interface import Sampling
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Ending, SpanKind
from tests.support.contexts import chat, make, result
from tests.support.small_tokenizers import TEMPLATES, TOKENIZERS

SEARCH = "<think>so</think><search>Ann</search>"
ACCESS = "<think>page</think><access>Rome</access>"
ANSWER = "<think>done</think><answer>Ann</answer>"
FOUND = result("1. Ann: Ann was born in Rome.")
PAGE = result("Rome: " + "Rome is a town. " * 12)
ROUNDS = [SEARCH, ACCESS, ANSWER]


# The instructions


@pytest.mark.parametrize("name", ["default", "compact"])
def test_instructions_have_no_word_of_memory(name: str) -> None:
    template = load_template(name)
    with_memory = template.render(question="Who?")
    assert with_memory == template.render(question="Who?", memory=True)
    assert "<mem>" in with_memory
    without = template.render(question="Who?", memory=False)
    assert "mem" not in without.lower()
    assert without.endswith("Who?")
    for tag in ("<think>", "<search>", "<access>", "<answer>"):
        assert tag in without


def test_compact_instructions_to_the_letter() -> None:
    shown = load_template("compact").render(question="Who?", memory=False)
    assert shown == "Use <think><search><access><answer>. Who?"


def test_default_instructions_number_what_is_left() -> None:
    lines = load_template("default").render(question="Who?", memory=False).split("\n")
    assert lines[2:4] == ["1. <think>your reasoning</think>", "2. exactly one action:"]


def test_own_instructions_that_ask_for_memories_are_refused(tmp_path: object) -> None:
    own = f"{tmp_path}/own.txt"
    with open(own, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("Write <mem>. {{ question }}")
    check_template(own, DEFAULT_TOOLS, ["memory", "full", "mem1"])
    with pytest.raises(ConfigError, match=r"own.txt: it asks for <mem> in the context react"):
        check_template(own, DEFAULT_TOOLS, ["memory", "react"])


# Contexts


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_round_sees_everything_and_the_instructions_without_memory(
    kind: str, template: str
) -> None:
    made = make(ROUNDS, kind, template, prefill_memory=True)
    question = "Plain. Who?"
    if template != "qwen3":  # it takes thoughts out of earlier turns; ids keep them
        assert made.prompts == [
            made.ids_of(chat(question)),
            made.ids_of(chat(question, SEARCH, FOUND)),
            made.ids_of(chat(question, SEARCH, FOUND, ACCESS, PAGE)),
        ]
    trajectory = made.trajectory
    assert trajectory.ending is Ending.ANSWERED
    assert len(trajectory.sequences) == 1
    (sequence,) = trajectory.sequences
    assert [sequence.ids[: one.snapshot_length] for one in trajectory.rounds] == made.prompts
    assert trajectory.format_valid is True
    assert [one.text for one in trajectory.rounds] == ROUNDS  # no prefilled <mem>
    assert list(trajectory.scored_rounds()) == []


def test_messages_of_engines_that_are_asked_with_chats() -> None:
    turns = ["Plain. Who?", SEARCH, FOUND, ACCESS, PAGE]
    made = make(ROUNDS, by_chat=True)
    assert made.prompts == [chat(*turns[:1]), chat(*turns[:3]), chat(*turns)]


def test_tokens_by_hand() -> None:
    """Every round's context and its generation, summed; the largest is the last."""
    made = make(ROUNDS)
    question = made.ids_of(chat("Plain. Who?"))
    second = made.ids_of(chat("Plain. Who?", SEARCH, FOUND))
    third = made.ids_of(chat("Plain. Who?", SEARCH, FOUND, ACCESS, PAGE))
    rounds = [len(made.encode(text)) for text in ROUNDS]
    contexts = [len(question), len(second), len(third)]
    assert made.trajectory.total_tokens == sum(contexts) + sum(rounds)
    assert made.trajectory.peak_tokens == contexts[2] + rounds[2]
    assert made.trajectory.policy_tokens == sum(rounds)


def test_the_whole_history_never_comes_back() -> None:
    made = make([SEARCH] * 8, reuse_repeats=True)
    assert len(made.prompts) == 8
    assert made.trajectory.repeated_rounds == 0


def test_seeds_and_chance_are_as_in_any_context() -> None:
    made = make(ROUNDS, sampling=Sampling(temperature=1.0))
    assert made.trajectory.answer == "Ann"


# Format rules

PLAIN = Protocol(memory=False)


@pytest.mark.parametrize(
    ("text", "with_memory", "without"),
    [
        ("<think>t</think><search>q</search>", [8], []),
        ("<mem>m</mem><think>t</think><search>q</search>", [], [5]),
        ("<mem> </mem><think>t</think><search>q</search>", [8], [5]),
        ("<mem>m<think>t</think><search>q</search>", [1, 2, 3, 8], [5]),
        ("</mem><think>t</think><search>q</search>", [1, 8], [5]),
        ("<think>a <mem> b</think><search>q</search>", [8], []),
        ("<think>t</think>", [2, 8], [2]),
    ],
)
def test_rule_8_is_off_and_a_memory_is_text_outside_tags(
    text: str, with_memory: list[int], without: list[int]
) -> None:
    assert parse_round(text, 2).broken_rules == with_memory
    parsed = parse_round(text, 2, PLAIN)
    assert parsed.broken_rules == without
    assert parsed.mem is None


def test_rule_7_holds_as_ever() -> None:
    assert trajectory_broken_rules([SEARCH, ANSWER], PLAIN) == []
    assert trajectory_broken_rules([SEARCH], PLAIN) == [7]
    assert trajectory_broken_rules([SEARCH, ANSWER]) == [8]


def test_an_action_inside_what_would_be_a_memory_is_one() -> None:
    assert parse_round("<mem>a <search>q</search>", 2).action is None
    parsed = parse_round("<mem>a <search>q</search>", 2, PLAIN)
    assert (parsed.action, parsed.argument) == ("search", "q")


def test_a_memory_that_is_written_all_the_same() -> None:
    """It is shown on like any text, belongs to no memory span and breaks the format."""
    told = "<mem>Ann: Rome</mem>" + ANSWER
    made = make([SEARCH, told])
    last = made.trajectory.rounds[1]
    assert (last.mem, last.memory_span, last.broken_rules) == (None, None, [5])
    assert made.trajectory.format_valid is False
    kinds = made.trajectory.sequences[0].kinds[last.start : last.end]
    assert SpanKind.MEMORY not in kinds
    assert SpanKind.OTHER in kinds
    assert made.trajectory.answer == "Ann"
