"""What ``mempo ask`` prints, and what it makes of its command line (around the method)."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from mempo.ask.__main__ import main
from mempo.ask.shown import OBSERVATION_CHARS, ending_row, round_rows, visible
from mempo.command.cli import compose
from mempo.evaluation import standalone
from mempo.records.trajectory_lines import read_trajectories
from mempo.trajectory import Ending, Round
from tests.support.asked import QUESTION, Starts, asked_twice, make_run
from tests.support.handmade import make_trajectory

PRINTED = """\
round 1 ────────────────────────────────────────────────────────────────────────
thought    Need founder.
search     Amber Works
result     1. Amber Works: founder Anna Bel.
round 2 ────────────────────────────────────────────────────────────────────────
memory     Amber Works founder Anna Bel.
thought    Done.
────────────────────────────────────────────────────────────────────────────────
answer     Anna Bel
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("asked") / "run")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Stands in for the engine that the program starts."""
    starts = Starts()
    monkeypatch.setattr(standalone, "start_engine", starts)
    monkeypatch.setenv("COLUMNS", "80")
    return starts


def ask(run: Path, *arguments: str) -> None:
    main([str(run), *arguments, f"data.corpus={run}/passages.jsonl"])


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


def plain(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_rounds_are_printed_with_what_they_did(
    run: Path, starts: Starts, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(run, QUESTION)
    told = capsys.readouterr()
    shown, used = plain(told.out).split("used ")
    assert shown == PRINTED
    sent = [len(one.prompt_ids) + len(one.generation.ids) for one in starts.engines[0].requests]
    assert " ".join(used.split()) == (
        f"2 rounds, 1 tool call, {sum(sent):,} tokens over all rounds, {max(sent):,} in the largest"
    )
    assert told.err.startswith(f"loading {run}\nsettings of {run}; changed here: data.format=local")
    assert starts.engines[0].closed == 1


def test_a_context_without_memory_misses_none(
    run: Path, starts: Starts, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(run, QUESTION, "--context", "react")
    shown = plain(capsys.readouterr().out)
    assert "memory" not in shown
    assert "Anna Bel" in shown
    (engine,) = starts.engines
    prompt = engine._conversation.decode(engine.requests[0].prompt_ids)
    assert "Use <think><search><access><answer>." in prompt
    assert "<mem>" not in prompt


def test_json_is_a_line_of_trajectories(
    run: Path, starts: Starts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(run, "--json", QUESTION, "--context", "full")
    out = capsys.readouterr().out
    (tmp_path / "lines.jsonl").write_text(out)
    (line,) = read_trajectories(tmp_path / "lines.jsonl")
    assert (line.model, line.context) == (f"{run}/model", "full")
    assert (line.question, line.answer, line.reward, line.metrics) == (
        QUESTION,
        "Anna Bel",
        None,
        {},
    )
    assert [one.action for one in line.rounds] == ["search", "answer"]
    assert json.loads(out)["golds"] == [[]]


def test_questions_on_standard_input_are_answered_together_and_in_order(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = Starts(asked_twice)
    monkeypatch.setattr(standalone, "start_engine", starts)
    lines = "After 2 searches?\n\n  After 0 searches? \n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    ask(run, "-", "--json")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["answer"] for one in told] == ["2 done", "0 done"]
    assert {one.key for one in starts.engines[0].requests} == {"0", "1"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    ask(run, "-")
    shown = plain(capsys.readouterr().out)
    assert shown.startswith("After 2 searches?\nround 1 ─")
    assert "\nmemory     so far [-1-] {+2+}\n" in shown
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert "standard input holds no question" in refused([str(run), "-"], capsys)


def test_a_conversation_goes_on_until_exit(
    run: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each question is a trajectory of its own; with ``exit``, and where the input ends."""
    for lines, answers in ((f"{QUESTION}\n\n{QUESTION}\nexit\nWho?\n", 2), (QUESTION, 1), ("", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        ask(run)
        shown = plain(capsys.readouterr().out)
        assert shown.count(PRINTED) == answers
        assert shown.count("used ") == answers
    first, _, second, _ = (one.prompt_ids for one in starts.engines[0].requests)
    assert first == second
    assert [engine.closed for engine in starts.engines] == [1, 1, 1]


def test_ctrl_c_gives_up_a_question_and_ends_at_the_prompt(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stops(io.StringIO):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            if line := super().readline():
                return line
            raise KeyboardInterrupt

    def answer(prompt: str) -> str:
        if "stop" in prompt:
            raise KeyboardInterrupt
        return "<think>a</think><answer>fine</answer>"

    starts = Starts(answer)
    monkeypatch.setattr(standalone, "start_engine", starts)
    monkeypatch.setattr(sys, "stdin", Stops("Will it stop?\nHow is it?\n"))
    with pytest.raises(SystemExit) as caught:
        ask(run)
    assert caught.value.code == 130
    told = capsys.readouterr()
    assert "stopped; ask another, or exit" in told.err
    assert "answer     fine" in told.out
    assert (starts.engines[0].aborted, starts.engines[0].closed) == (1, 1)


def test_two_models_side_by_side(
    run: Path, starts: Starts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "other")
    arguments = [f"data.corpus={run}/passages.jsonl", "--compare", str(run), str(other), QUESTION]
    main(arguments)
    shown = capsys.readouterr().out
    assert len(starts.engines) == 2
    header = next(line for line in shown.splitlines() if "run" in line)
    assert header.split() == ["┃", "┃", "run", "┃", "other", "┃"]
    row = next(line for line in shown.splitlines() if "round 1" in line)
    assert row.count("thought: Need founder.") == 2
    row = next(line for line in shown.splitlines() if line.startswith("│ answer"))
    assert row.count("Anna Bel") == 2
    main([*arguments, "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["model"] for one in lines] == [f"{run}/model", f"{other}/model"]
    assert [engine.closed for engine in starts.engines] == [1, 1, 1, 1]


def test_what_is_wrong_with_the_second_model_is_told_before_the_first_is_loaded(
    run: Path, starts: Starts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere: no such folder" in refused(
        ["--compare", str(run), "./nowhere", QUESTION], capsys
    )
    assert starts.engines == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a run folder, a model folder or a hub name"),
        (["no/such/run", QUESTION], "error: evaluation.model_path=no/such/run: no such folder"),
        (["owner/name", QUESTION], "is a model without a run's settings"),
        (["RUN", "two", "words"], "put the question in quotes: 'two words'"),
        (["RUN", QUESTION, "--context", "ful"], "error: there is no context 'ful': take one of"),
        (["RUN", QUESTION, "data.corpus=nowhere"], "error: data.corpus=nowhere: no such file"),
        (["RUN", QUESTION, "sed=1"], "error: sed: there is no such setting; did you mean seed?"),
        (["RUN", QUESTION, "seed=-1"], "seed"),
        (["RUN", " "], "error: the question is empty"),
        (["--compare", "RUN", "RUN", " "], "error: the question is empty"),
        (["--compare", "RUN", "RUN"], "--compare takes one question"),
        (["--compare", "RUN", "RUN", "-"], "--compare takes one question"),
    ],
)
def test_wrong_command_lines_are_told_in_a_sentence(
    run: Path, starts: Starts, arguments: list[str], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert sentence in refused([word.replace("RUN", str(run)) for word in arguments], capsys)
    assert starts.engines == []


def test_a_question_may_hold_an_equals_sign(
    run: Path, starts: Starts, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(run, "What is x = 3?", "--json", "evaluation.max_rounds=1")
    line = json.loads(capsys.readouterr().out)
    assert (line["question"], line["ending"]) == ("What is x = 3?", "max_rounds")


# Single rounds


def make_round(**values: object) -> Round:
    return Round(2, 1, 0, 0, 9, **{"text": "hm", "think": "so", **values})  # type: ignore[arg-type]


def rows_of(one: Round, before: str | None = None, colours: bool = False) -> dict[str, str]:
    return {name: text.plain for name, text in round_rows(one, before, colours)}


def test_what_a_memory_changed_is_marked_or_coloured() -> None:
    one = make_round(mem="A is one. C is three.", action="search", argument="q")
    before = "A is one. B is two."
    assert rows_of(one, before)["memory"] == "A is one. [-B-] {+C+} is [-two.-] {+three.+}"
    (memory,) = [text for name, text in round_rows(one, before, True) if name == "memory"]
    styles = {memory.plain[span.start : span.end]: str(span.style) for span in memory.spans}
    assert styles == {"B": "strike red", "C": "bold green", "two.": "strike red",
                      "three.": "bold green"}  # fmt: skip
    assert rows_of(one)["memory"] == "A is one. C is three."  # the first memory
    assert rows_of(make_round(action="search"))["memory"] == "none was written"
    without = [name for name, _ in round_rows(make_round(action="search"), None, False, False)]
    assert without == ["thought", "search"]  # a context that has none


def test_nothing_that_is_shown_moves_the_cursor() -> None:
    hostile = "a\x1b[2Jb\rc\x07d\u202ee\x9bf\x7f \ud83d"
    one = make_round(
        mem=hostile, think=hostile, action="access", argument=hostile,
        observation=f"<information>{hostile}[bold]x[/bold]</information>",
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    for _, text in round_rows(one, hostile + " old", True):
        console.print(text)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert written.count("a\ufffd[2Jb\ufffdc\ufffdd\ufffde\ufffdf\ufffd") == 4
    assert "[bold]x[/bold]" in written
    assert "\x1b[2J" not in written
    assert visible("two\nlines\tand é 中 👩\u200d🚀") == "two\nlines\tand é 中 👩\u200d🚀"


def test_long_results_are_cut_and_say_so() -> None:
    text = "x" * (OBSERVATION_CHARS + 1234)
    shown = rows_of(make_round(action="search", argument="q", observation=text))["result"]
    assert shown == "x" * OBSERVATION_CHARS + " … (1,234 more characters)"


def test_a_round_without_an_action_shows_what_was_written() -> None:
    assert rows_of(make_round(text="prose", think=None, mem="m")) == {
        "memory": "m",
        "wrote": "prose",
    }


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        (Ending.MAX_ROUNDS, "evaluation.max_rounds=6 is reached"),
        (Ending.RESPONSE_BUDGET, "evaluation.max_response_tokens=1536 is reached"),
        (Ending.CONTEXT_BUDGET, "the model's context is full (engine.max_model_len)"),
        (Ending.NO_ACTION, "the last round neither searches, opens a page nor answers"),
    ],
)
def test_why_there_is_no_answer(ending: Ending, sentence: str) -> None:
    config = compose("evaluate", ["experiment=debug"])
    name, text = ending_row(make_trajectory(ending=ending), config)
    assert (name, text.plain) == ("no answer", sentence)
