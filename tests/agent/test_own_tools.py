"""Tools of one's own: what they are made from, what a faulty one does to a run, and that the
protocol follows the list (specification sections 2 and 3)."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pytest

from mempo.agent.conversation import Conversation
from mempo.agent.error_rate import ToolFailureError
from mempo.agent.inert import make_inert
from mempo.agent.prompts import load_template, template_text
from mempo.agent.protocol import DEFAULT_PROTOCOL, Protocol, parse_round, trajectory_broken_rules
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings, no_action_feedback
from mempo.agent.tools import ToolBox, ToolResult, check_tools, make_tools, own, protocol_of
from mempo.agent.tools.timed import TimeLimit
from mempo.command.cli import compose
from mempo.config import ACCESS, DEFAULT_TOOLS, SEARCH, RetrieverConfig, ToolConfig
from mempo.engine.interface import Sampling
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Ending, Objective, Task, Trajectory
from tests.support import own_tools
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.small_tokenizers import SYSTEM, make_tokenizer

HERE = "tests.support.own_tools"
TASK = Task("t1", (Objective("Who?", ("Ann",)),))
SHOUT = ToolConfig(f"{HERE}.shout", "shout", "to say it loudly", "a word")
FAULT = ToolConfig(f"{HERE}.fault", "fault", "to go wrong", timeout_s=0.2, max_chars=1000)

PROMPT = """\
Answer the question. Work in rounds. In each round write, in this order and nothing else:

1. <mem>your memory</mem>: everything you have established so far that you still need to answer \
the question, in short plain sentences. In the first round you may leave it out. Later you may see \
only your newest memory and the newest result, so what is not in the memory is lost.
2. <think>your reasoning</think>
3. exactly one action:
   <search>a query</search> to search for passages
   <access>the title or URL of a page in the results</access> to read a page; opening it again \
shows its next part
{own}   <answer>your answer</answer> to finish

Results are shown to you between <information> and </information>; never write these tags \
yourself. Where there are several questions, separated by ";", give the answers in the same order, \
separated by ";".

Question: Who?"""


# The protocol follows the list


def test_the_default_run_says_what_it_always_said() -> None:
    config = compose("train")
    assert config.tools == DEFAULT_TOOLS == (SEARCH, ACCESS)
    assert protocol_of(config.tools) == DEFAULT_PROTOCOL
    assert DEFAULT_PROTOCOL.stop_strings == ("</search>", "</access>", "</answer>")
    assert DEFAULT_PROTOCOL.tags == ("mem", "think", "search", "access", "answer", "information")
    assert no_action_feedback(DEFAULT_PROTOCOL) == (
        "No action was found. Write exactly one of <search>, <access> or <answer> and close it."
    )
    for name, text in (
        ("default", PROMPT.format(own="")),
        ("compact", "Use <mem><think><search><access><answer>. Who?"),
    ):
        assert load_template(name, config.tools).render(question="Who?") == text
        assert load_template(name).render(question="Who?") == text
        # What supervised starts are kept under.
        assert template_text(name, config.tools) == text.replace("Who?", "{{ question }}")


def test_instructions_stops_feedback_and_rules_name_a_tool_of_ones_own() -> None:
    tools = (*DEFAULT_TOOLS, SHOUT)
    protocol = protocol_of(tools)
    assert protocol.stop_strings == ("</search>", "</access>", "</shout>", "</answer>")
    assert no_action_feedback(protocol).endswith(
        "exactly one of <search>, <access>, <shout> or <answer> and close it."
    )
    line = "   <shout>a word</shout> to say it loudly\n"
    assert load_template("default", tools).render(question="Who?") == PROMPT.format(own=line)
    assert load_template("compact", (SHOUT,)).render(question="Who?") == (
        "Use <mem><think><shout><answer>. Who?"
    )
    assert template_text("default", tools) != template_text("default")


def test_a_round_is_read_by_the_runs_tags() -> None:
    text = "<think>so</think><shout> Ann </shout>"
    own = parse_round(text, 1, Protocol(("shout",)))
    assert (own.action, own.argument, own.broken_rules) == ("shout", "Ann", [])
    assert own.action_end == len(text)
    usual = parse_round(text, 1)
    assert (usual.action, usual.broken_rules) == (None, [2, 5])
    searched = parse_round("<think>so</think><search>Ann</search>", 1, Protocol(("shout",)))
    assert (searched.action, searched.broken_rules) == (None, [2, 5])
    rounds = [text, "<mem>m</mem><think>so</think><answer>ANN</answer>"]
    assert trajectory_broken_rules(rounds, Protocol(("shout",))) == []
    assert trajectory_broken_rules(rounds) == [2, 5]


def test_the_tag_is_words_in_foreign_text() -> None:
    text = "<shout>a</shout> < /SHOUT > <shouts>"
    assert make_inert(text) == text
    assert make_inert(text, ("shout",)) == "(shout)a(/shout) (/SHOUT) <shouts>"
    conversation = Conversation(make_tokenizer("bytes"), SYSTEM, Protocol(("shout",)))
    assert conversation.inert("<shout>a") == "(shout)a"


def test_a_template_of_ones_own_must_name_the_tool(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("Search with <search>. {{ question }}")
    assert load_template(str(path)).render(question="Q") == "Search with <search>. Q"
    with pytest.raises(ConfigError, match=r"does not name the tool <shout>: .*\{\{ tools \}\}"):
        load_template(str(path), (*DEFAULT_TOOLS, SHOUT))
    silent = ToolConfig(f"{HERE}.shout", "shout", None)
    assert load_template(str(path), (*DEFAULT_TOOLS, silent)).render(question="Q").endswith(" Q")
    assert "shout" not in load_template("default", (silent,)).render(question="Q")


# Calls


def call(entry: ToolConfig, argument: str) -> ToolResult:
    inert = partial(make_inert, tags=("shout",))
    box = ToolBox({}, RetrieverConfig(), inert, make_tools([entry]))
    return box.session(TASK).call(entry.tag, argument)


def test_functions_get_argument_task_and_arguments() -> None:
    assert call(SHOUT, " Ann ") == ToolResult("ANN t1!", "ANN t1!")
    quiet = ToolConfig(f"{HERE}.shout", "shout", None, arguments={"ending": "."})
    assert call(quiet, "Ann").text == "ANN t1."
    assert call(ToolConfig(f"{HERE}.Echo", "echo", None), "Ann").text == "Ann"
    assert call(ToolConfig(f"{HERE}.Echo.back", "echo", None), "Ann").text == "nnA"


def test_a_class_is_made_once_and_each_trajectory_has_its_state() -> None:
    own_tools.made.clear()
    entry = ToolConfig(f"{HERE}.Counter", "count", None, arguments={"step": 2})
    check_tools([entry])
    assert own_tools.made == []  # looked at, not made
    box = ToolBox({}, RetrieverConfig(), tools=make_tools([entry]))
    one, two = box.session(TASK), box.session(TASK)
    assert [one.call("count", "a").text, one.call("count", "b").text] == ["a: 2", "b: 4"]
    assert two.call("count", "c").text == "c: 2"
    assert len(own_tools.made) == 1
    with pytest.raises(ValueError, match='there is no tool "search": the tools are count'):
        one.call("search", "x")


@pytest.mark.parametrize(
    ("argument", "text", "failed", "error"),
    [
        ("raise", "The tool fault failed. Try another input.", False, "KeyError: 'no such thing'"),
        ("exit", "The tool fault failed. Try another input.", False, "fault: SystemExit: 3"),
        ("hang", "The tool fault took too long. Try another input.", False,
         "fault: TimeoutError: no result within tools.0.timeout_s=0.2 seconds"),
        ("cancel", "The tool fault failed. Try another input.", False, "fault: CancelledError: "),
        ("interrupt", "The tool fault failed. Try another input.", False,
         "fault: KeyboardInterrupt: "),
        ("wordless", "The tool fault failed. Try another input.", False,
         "fault: Wordless: (its text cannot be read: ValueError)"),
        ("wordless fault", "(its text cannot be read: ValueError)", True, None),
        ("half a result", "The tool fault gave no text. Try another input.", False,
         "fault: it gave a NoneType where a text belongs"),
        ("half a short text", "The tool fault gave no text. Try another input.", False,
         "fault: it gave a int where a text belongs"),
        ("number", "The tool fault gave no text. Try another input.", False,
         "fault: it gave a int where a text belongs"),
        ("none", "The tool fault gave no text. Try another input.", False,
         "fault: it gave a NoneType where a text belongs"),
        ("surrogate", "What the tool fault gave is not valid text. Try another input.", False,
         "fault: what it gave is not valid text"),
        ("blank", "The tool fault gave no text. Try another input.", True, None),
        (" ", "The input of fault is empty. Write the input.", True, None),
        ("bad", "Write (answer) in words.", True, None),
        ("tags", "(answer)Ann(/answer) (Shout)x(im_end)", False, None),
        ("long", "ab" * 500, False, None),
    ],
)  # fmt: skip
def test_whatever_a_tool_does_gives_an_observation(
    argument: str, text: str, failed: bool, error: str | None
) -> None:
    result = call(FAULT, argument)
    assert (result.text, result.failed) == (text, failed)
    assert (result.error is None) == (error is None)
    assert error is None or error in (result.error or "")


@pytest.mark.parametrize(
    ("how", "text", "error"),
    [
        ("raise", "The tool open failed. Try another input.", "open: ConnectionError: no line"),
        ("hang", "The tool open took too long. Try another input.",
         "open: TimeoutError: no result within tools.0.timeout_s=0.2 seconds"),
    ],
)  # fmt: skip
def test_a_session_that_cannot_be_opened_is_a_failed_call(how: str, text: str, error: str) -> None:
    target = f"{HERE}.Unopened"
    entry = ToolConfig(target, "open", None, timeout_s=0.2, arguments={"how": how})
    box = ToolBox({}, RetrieverConfig(), tools=make_tools([entry]))
    started = time.monotonic()
    session = box.session(TASK)  # made on the engine's thread
    assert time.monotonic() - started < 0.1
    first = session.call("open", "a")
    assert (first.text, first.failed) == (text, False)
    assert error in (first.error or "")
    # The next call tries again, and what it opens stays.
    assert [session.call("open", word).text for word in "bc"] == ["b after 2", "c after 2"]


def test_an_interrupt_of_the_program_is_none_of_the_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(limit: TimeLimit, given: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(own, "within", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(SHOUT, "Ann")


def test_an_exception_is_told_with_its_place() -> None:
    lines = Path(own_tools.__file__).read_text(encoding="utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "raise KeyError" in text)
    error = call(FAULT, "raise").error
    assert error == f"fault: KeyError: 'no such thing' (own_tools.py, line {line})"


def test_short_texts() -> None:
    short = ToolConfig(f"{HERE}.fault", "fault", None, short_chars=9)
    assert call(short, "tags").short_text == "(answer)A"
    assert call(FAULT, "tags").short_text == "(answer)Ann(/answer) (Shout)x(im_end)"
    given = call(FAULT, "result")
    assert given == ToolResult("long text", "(mem)", error="the disk is full")


# Trajectories


def roll_out(
    script: Any, tools: tuple[ToolConfig, ...], samples: int = 1, **options: Any
) -> list[Trajectory]:
    conversation = Conversation(make_tokenizer("merged"), SYSTEM, protocol_of(tools))
    retriever = RetrieverConfig(**options)
    pages = {"default": FakeRetriever({"Ann": "Ann was born in Rome."})}
    box = ToolBox(pages, retriever, conversation.inert, make_tools(tools))
    rollout = Rollout(
        ScriptedEngine(conversation, script),
        conversation,
        box,
        jinja2.Template("{{ question }}"),
        max_tool_error_rate=retriever.max_tool_error_rate,
    )
    limits = AgentSettings("full", 8, 3000, 300, 200, on_no_action="feedback")
    return rollout.collect([TASK], samples, limits, Sampling())


def act(action: str, argument: str) -> str:
    return f"<mem>m</mem><think>so</think><{action}>{argument}</{action}>"


def test_a_trajectory_goes_through_its_tools() -> None:
    script = [
        act("search", "Ann"), act("shout", "Ann") + " more", "<mem>m</mem><think>so</think>",
        act("fault", "tags"), act("answer", "Ann"),
    ]  # fmt: skip
    (one,) = roll_out(script, (*DEFAULT_TOOLS, SHOUT, FAULT))
    assert one.ending is Ending.ANSWERED
    assert [part.action for part in one.rounds] == ["search", "shout", None, "fault", "answer"]
    assert [part.observation for part in one.rounds] == [
        "<information>1. Ann: Ann was born in Rome.</information>",
        "<information>ANN t1!</information>",
        "<information>No action was found. Write exactly one of <search>, <access>, <shout>, "
        "<fault> or <answer> and close it.</information>",
        "<information>(answer)Ann(/answer) (Shout)x(im_end)</information>",
        None,
    ]
    # Nothing after the tool's closing tag is kept.
    assert one.rounds[1].text == act("shout", "Ann")
    assert (one.tool_calls, one.tool_failures, one.tool_errors) == (3, 0, 0)
    assert one.format_valid is False  # the round without an action
    (clean,) = roll_out([act("shout", "Ann"), act("answer", "Ann")], (SHOUT,))
    assert (clean.format_valid, clean.reward) == (True, 1.0)


def test_without_search_no_corpus_is_asked_for() -> None:
    elsewhere = Task("t", TASK.objectives, corpus="nowhere")
    box = ToolBox({}, RetrieverConfig(), tools=make_tools([SHOUT]))
    assert box.session(elsewhere).call("shout", "a").text == "A t!"
    with pytest.raises(ValueError, match="nowhere"):
        ToolBox({}, RetrieverConfig()).session(elsewhere)


def test_a_failing_tool_stops_the_run_however_well_the_others_do() -> None:
    script = [*[act("search", "Ann")] * 6, act("fault", "raise"), act("answer", "Ann")]
    tools = (*DEFAULT_TOOLS, FAULT)
    with pytest.raises(ToolFailureError) as caught:
        roll_out(script, tools, samples=2)
    assert str(caught.value).startswith(
        "2 of 2 calls of the tool fault of this epoch failed for a reason that is not the model's "
        "own, more than retriever.max_tool_error_rate=0.2 allows. Last cause: fault: KeyError: "
    )
    own = ToolConfig(f"{HERE}.fault", "fault", None, max_error_rate=0.5)
    with pytest.raises(ToolFailureError, match=r"more than tools\.2\.max_error_rate=0\.5 allows"):
        roll_out(script, (*DEFAULT_TOOLS, own))
    some = ToolConfig(f"{HERE}.fault", "fault", None, max_error_rate=1.0)
    (kept,) = roll_out(script, (*DEFAULT_TOOLS, some))
    assert (kept.tool_calls, kept.tool_errors, kept.ending) == (7, 1, Ending.ANSWERED)


# Settings


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shout", r"tools\.0\._target_=shout: write it as module\.name"),
        ("no_module_of_mine.tool", r"tools\.0\._target_=.*there is no module no_module_of_mine in"),
        (f"{HERE}.shot", rf"has no shot; did you mean {HERE}\.shout\?"),
        (".own_tools.shout", r"=\.own_tools\.shout: write it as module\.name"),
        ("tests/own_tools.py", r"=tests/own_tools\.py: write it as module\.name"),
        (f"{HERE}:shout", r"own_tools:shout: write it as module\.name"),
        (f"{HERE}.Echo.bak", rf"has no bak; did you mean {HERE}\.Echo\.back\?"),
        (f"{HERE}.shout.more", rf"there is no module {HERE}\.shout in"),
        ("json.tool", r"json\.tool is a module: add the name of what it holds"),
        (f"{HERE}.NOT_A_TOOL", r"NOT_A_TOOL is a int\. A tool is a function \(argument: str, task"),
        (f"{HERE}.Nothing", "Nothing has neither session nor __call__"),
        (
            f"{HERE}.one_argument",
            r"one_argument takes argument: too many positional arg.*\. A tool",
        ),
        (f"{HERE}.later", "later is async: tools run on threads"),
    ],
)
def test_what_is_no_tool_gets_a_sentence(target: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_tools([ToolConfig(target, "mine", None)])


def test_arguments_that_it_does_not_take_get_a_sentence() -> None:
    for name in ("shout", "Counter"):
        entry = ToolConfig(f"{HERE}.{name}", "mine", None, arguments={"steps": 2})
        with pytest.raises(ConfigError, match=rf"tools\.0\._target_={HERE}\.{name}.*'steps'"):
            check_tools([entry])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tools.0.tag=mem"], 'tools.0: tag "mem": rounds are written in mem, think, answer'),
        (["tools.0.tag='a b'"], 'tools.0: tag "a b": a tag is a lower-case letter'),
        (["tools.0.tag=access"], 'tools: the tag "access" is there twice'),
        (["tools.0.timeout_s=0"], "tools.0.timeout_s=0: Input should be greater than 0"),
        (["tools.1.short_chars=9"], "short_chars is not read by mempo.agent.tools.Access: retr"),
        (["+tools.0.limit=9"], "tools.0.limit: there is no such setting"),
        (["tools.0.tag=find"], "tools: the demonstrations of the generated world search and open"),
    ],
)
def test_settings_that_cannot_be_get_a_sentence(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", overrides)
    assert str(caught.value).startswith(words) or words in str(caught.value)
    assert not str(caught.value).startswith("configuration")
