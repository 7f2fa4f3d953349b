"""Files of trajectories: every shape is read, and what cannot be used is named with file, line and
rule (specification section 2)."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mempo.agent.prompts import load_template
from mempo.command.cli import compose
from mempo.config import SftConfig
from mempo.demonstrations.asked_question import PromptFrame, prompt_frame
from mempo.demonstrations.trajectory_files import ReadTrajectories, read_trajectory_files
from mempo.demonstrations.trajectory_shapes import WrittenRound, unwrapped
from mempo.row_files.rows import DataError
from tests.support.docs_examples import commands, example

ROWS = Path(__file__).resolve().parents[1] / "fixtures" / "trajectories"
FRAME = prompt_frame(load_template("default"))
QUESTION = "Who founded Aurora Mills?"
INFORMATION = "1. Aurora Mills: Aurora Mills is a company. It was founded by Ida Berg."
THOUGHT, SEARCH = "<think>I need the founder.</think>", "<search>Aurora Mills founder</search>"
ANSWER = (
    "<mem>Ida Berg founded Aurora Mills.</mem><think>That answers it.</think>"
    "<answer>Ida Berg</answer>"
)
USUAL = (WrittenRound(THOUGHT + SEARCH, INFORMATION), WrittenRound(ANSWER, None))


def read(*files: Path, frame: PromptFrame = FRAME, **options: Any) -> ReadTrajectories:
    config = SftConfig(source="file", path=tuple(map(str, files)), **options)
    return read_trajectory_files(config, frame)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chat(*turns: str) -> dict[str, Any]:
    """The question, then assistant's turns and observations in turn."""
    roles = ["user", *(("assistant", "tool") * len(turns))]
    texts = [QUESTION, *turns]
    return {
        "messages": [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
        ]
    }


# Shapes


@pytest.mark.parametrize("name", ["messages.jsonl", "sharegpt.jsonl"])
def test_chats(name: str) -> None:
    (found,) = read(ROWS / name).trajectories
    assert (found.question, found.rounds, found.reward) == (QUESTION, USUAL, None)


def test_packed_lists_and_parquet_hold_the_same(tmp_path: Path) -> None:
    """Parquet as verl's multi-turn trainer reads it, and with the chat written as JSON."""
    import pyarrow
    import pyarrow.parquet

    row = json.loads((ROWS / "messages.jsonl").read_text(encoding="utf-8"))
    packed, listed = tmp_path / "a.jsonl.gz", tmp_path / "b.json"
    packed.write_bytes(gzip.compress(json.dumps(row).encode()))
    listed.write_text(json.dumps([row, row], indent=1), encoding="utf-8")
    files = [packed, listed]
    for name, value in (("c", row["messages"]), ("d", json.dumps(row["messages"]))):
        files.append(tmp_path / f"{name}.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": value}]), files[-1])
    found = read(*files)
    assert found.rows == 5
    assert [one.rounds for one in found.trajectories] == [USUAL] * 5


def test_a_runs_own_lines(tmp_path: Path) -> None:
    wrapped = f"<information>{INFORMATION}</information>"
    rounds = [{"text": THOUGHT + SEARCH, "observation": wrapped}, {"text": ANSWER}]
    row = {"epoch": 3, "question": QUESTION, "rounds": rounds, "reward": 1.0}
    path = write(tmp_path / "trajectories.jsonl", row, {**row, "reward": 0.0})
    assert [one.rounds for one in read(path).trajectories] == [USUAL, USUAL]
    found = read(path, min_reward=0.5)
    assert [one.reward for one in found.trajectories] == [1.0]
    assert list(found.told.sentences()) == [
        f"1 rows have no reward above sft.min_reward and were left out (the first: {path}:2)"
    ]


def test_asearchers_dump() -> None:
    """Pieces up to a tool call are one round, and the thought that its prompt opens is opened."""
    with pytest.raises(DataError, match="round 2 breaks rule 8 of the protocol: a round after"):
        read(ROWS / "asearcher_dump.jsonl")
    whole = read(ROWS / "asearcher_dump.jsonl", may_break=(8,))
    assert whole.told.count("asked inside instructions of their own, which were taken off") == 1
    (found,) = whole.trajectories
    assert (found.question, found.reward) == (QUESTION, 1.0)
    first, last = found.rounds
    assert first.text == (
        "<think>\nI need the founder. </think>\n<search> Aurora Mills founder </search>"
    )
    assert first.observation == f"\n[Doc 1](https://example.org/aurora):\n{INFORMATION}\n"
    assert last == WrittenRound(
        "<think>\nThe document names Ida Berg. </think>\n<answer> Ida Berg </answer>", None
    )


def test_mem1s_rollouts() -> None:
    (found,) = read(ROWS / "mem1_rollout.jsonl", may_break=(8,)).trajectories
    assert found.question == "Who founded Aurora Mills?; Where was Ida Berg born?"
    assert found.reward == 2.0
    assert [one.text.split("\n")[1] for one in found.rounds] == [
        SEARCH,
        "<search>Ida Berg born</search>",
        "<answer>Ida Berg; Tarn</answer>",
    ]
    assert found.rounds[0].observation == (
        f"\n[HINT]You have 5 turns left.[/HINT]\n{INFORMATION}\n\n"
    )
    assert found.rounds[2].observation is None


def test_rounds_in_one_text() -> None:
    (found,) = read(ROWS / "search_r1_text.jsonl", may_break=(8,)).trajectories
    assert found.question == QUESTION
    assert found.rounds == (
        WrittenRound(f"{THOUGHT}\n<search> Aurora Mills founder </search>", INFORMATION),
        WrittenRound("<think>That answers it.</think>\n<answer> Ida Berg </answer>", None),
    )


def test_the_runs_own_instructions_come_off(tmp_path: Path) -> None:
    asked = load_template("default").render(question=QUESTION)
    row = chat(ANSWER)
    row["messages"][0]["content"] = asked + "\n"
    other = chat(ANSWER)
    other["messages"][0]["content"] = "Write <answer>, please."
    given = {**other, "question": "Who?"}
    found = read(write(tmp_path / "a.jsonl", row, given))
    assert [one.question for one in found.trajectories] == [QUESTION, "Who?"]
    with pytest.raises(DataError, match=r"a\.jsonl:1: .*give it by itself in a field"):
        read(write(tmp_path / "a.jsonl", other))


def test_observations_lose_their_tags_alone() -> None:
    assert unwrapped("<information> a\n</information>") == " a\n"
    assert unwrapped(" <information>a</information>\n") == "a"
    assert unwrapped("Result: <information>a</information>.") == "Result: a."
    assert unwrapped(" a </information> b ") == "a  b"


# Faults

FIRST = f"{THOUGHT}{SEARCH}"
FAULTS: dict[str, tuple[Any, str]] = {
    "no tag closes": (chat("<think>a</think><search>b"), "round 1 breaks rule 1 of the protocol"),
    "two actions": (
        chat(f"{THOUGHT}{SEARCH}{SEARCH}", "c", ANSWER),
        "round 1 breaks rule 2 of the protocol: a round has exactly one <search>",
    ),
    "no thought": (chat(SEARCH, "c", ANSWER), "round 1 breaks rule 3 of the protocol"),
    "blank query": (chat(f"{THOUGHT}<search> </search>", "c", ANSWER), "round 1 breaks rule 4"),
    "text outside": (chat(f"Well. {FIRST}", "c", ANSWER), "round 1 breaks rule 5 of the protocol"),
    "own observation": (
        chat(f"<information>x</information>{FIRST}", "c", ANSWER),
        "round 1 breaks rule 6 of the protocol: the model writes no <information> itself",
    ),
    "no answer": (chat(FIRST, "c", f"<mem>d</mem>{FIRST}"), "the trajectory breaks rule 7"),
    "no memory": (
        chat(FIRST, "c", "<think>d</think><answer>e</answer>"),
        "round 2 breaks rule 8 of the protocol: a round after the first begins with",
    ),
    "no shape": ({"prompt": "a", "completion": "b"}, "no trajectory: give the chat in"),
    "nobody's role": (
        {"messages": [{"role": "critic", "content": "a"}]},
        "message 1: the role or from str 'critic' is nobody's",
    ),
    "assistant first": (
        {"messages": [{"role": "assistant", "content": ANSWER}]},
        "the chat must begin with the user's question, assistant begins",
    ),
    "two in a row": (
        {"messages": [*chat(FIRST)["messages"], {"role": "gpt", "content": ANSWER}]},
        "message 3: two assistant's turns follow each other",
    ),
    "tool calls": (
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            ]
        },
        "message 2: its action stands in tool_calls",
    ),
    "no rounds": ({"messages": [{"role": "user", "content": "a"}]}, "the trajectory has no round"),
    "blank turn": (chat(" "), 'message 2: "content" is blank'),
    "number": ({"messages": 5}, 'the field "messages" must be a list of turns, it is int 5'),
    "no question": ({"rounds": [{"text": ANSWER}]}, 'the field "question" is missing'),
    "late system": (
        {"messages": [*chat(FIRST)["messages"], {"role": "system", "content": "x"}]},
        "message 3: a system message inside the trajectory",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_file_and_line(name: str, tmp_path: Path) -> None:
    row, words = FAULTS[name]
    path = write(tmp_path / "bad.jsonl", chat(FIRST, INFORMATION, ANSWER), row)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert words in str(caught.value)
    assert str(caught.value).endswith("sft.skip_bad_rows=true leaves such rows out and counts them")
    found = read(path, skip_bad_rows=True)
    assert ([one.rounds for one in found.trajectories], found.rows) == ([USUAL], 2)
    (told,) = found.told.sentences()
    assert told.startswith("1 rows could not be used and were left out (sft.skip_bad_rows)")
    assert words in told


def test_lines_that_are_no_json_are_rows_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", chat(ANSWER))
    path.write_bytes(path.read_bytes() + b'{"messages": [\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: the line is not JSON"):
        read(path)
    assert len(read(path, skip_bad_rows=True).trajectories) == 1


def test_rules_that_may_be_broken(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", chat(FIRST, "c", FIRST))
    with pytest.raises(DataError, match="breaks rule 7"):
        read(path, may_break=(8,))
    assert len(read(path, may_break=(7, 8)).trajectories) == 1


def test_a_reward_that_is_missing_or_no_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", chat(ANSWER))
    with pytest.raises(DataError, match=r"a\.jsonl:1: the row has no reward for sft\.min_reward"):
        read(path, min_reward=0.0)
    path = write(tmp_path / "a.jsonl", {**chat(ANSWER), "reward": "good"})
    with pytest.raises(DataError, match='the field "reward" must be a number'):
        read(path)


def test_nothing_left_and_nothing_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {**chat(ANSWER), "reward": 0.0})
    with pytest.raises(DataError, match=r"sft\.path=.*no trajectory is left: 1 rows have no rewar"):
        read(path, min_reward=0.0)
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read"):
        read(tmp_path / "gone.jsonl")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"a\.txt: files of this kind are not read"):
        read(tmp_path / "a.txt")


def test_one_path_or_several() -> None:
    assert SftConfig(source="file", path="a").paths == ("a",)
    assert replace(SftConfig(), source="file", path=("a", "b")).paths == ("a", "b")


def test_the_pages_row_and_command(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.loads(example("cold_start.md", "json")))
    assert [one.rounds for one in read(path).trajectories] == [USUAL]
    first, several = commands("cold_start.md")
    sft = compose("train", first).sft
    assert (sft.enabled, sft.source, sft.paths) == (True, "file", ("trajectories.jsonl",))
    data = ["data.questions=Q.jsonl", "data.corpus=C.jsonl"]  # the page's last "…"
    named = [one.strip('"').replace(",…", ",b.jsonl") for one in several[:-1]]
    sft = compose("train", [*named, *data]).sft
    assert (sft.source, sft.paths, sft.context) == ("file", ("gold1.jsonl", "b.jsonl"), "both")
