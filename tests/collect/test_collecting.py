"""``mempo collect``: from questions to a file that the supervised start reads (specification
sections 2, 4 and 5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2
import pytest

from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.collect.__main__ import main, read
from mempo.collect.written import chat_row
from mempo.config import Config, RetrieverConfig, SftConfig
from mempo.demonstrations.asked_question import prompt_frame
from mempo.demonstrations.trajectory_files import read_trajectory_files
from mempo.demonstrations.trajectory_texts import Layout, trajectory_texts
from mempo.engine.interface import Sampling
from mempo.evaluation import standalone
from mempo.evaluation.models import EvaluatedModel
from mempo.records.trajectory_records import trajectory_record
from mempo.row_files.told import Told
from mempo.trajectory import Objective, Task
from tests.support.asked import make_run
from tests.support.fakes import AnsweringEngine, FakeRetriever, ScriptedEngine
from tests.support.openai_servers import chat_answer, error_answer, openai_server
from tests.support.programs import read_lines
from tests.support.servers import Reply
from tests.support.small_tokenizers import make_conversation

QUESTIONS = {"Who founded Amber Works?": "Anna Bel", "Where is Anna Bel from?": "Arnden"}
SEARCH = "<think>Need it.</think><search>Amber Works</search>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("collected") / "run")
    rows = [{"question": q, "answer": a} for q, a in QUESTIONS.items()]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "questions.jsonl").write_text(text)
    (folder / "heldout.jsonl").write_text('{"question": "Where is Arnden?", "answer": "here"}\n')
    return folder


class Teachers:
    """Starts a teacher that searches and then answers "Anna Bel", or, at every second attempt of
    a question, "nobody"."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.engines: list[AnsweringEngine] = []
        self.answered = 0

    def __call__(self, model: EvaluatedModel, config: Config) -> AnsweringEngine:
        self.engines.append(AnsweringEngine(model.conversation, self.say, self.stop_after))
        return self.engines[-1]

    def say(self, prompt: str) -> str:
        if "<information>" not in prompt:
            return SEARCH
        self.answered += 1
        who = "nobody" if self.answered % 2 else "Anna Bel"
        return f"<mem>Anna Bel founded it.</mem><think>Done.</think><answer>{who}</answer>"


def data(run: Path) -> list[str]:
    own = [f"data.corpus={run}/passages.jsonl", f"data.heldout_questions={run}/heldout.jsonl"]
    return ["--data", f"{run}/questions.jsonl", *own]


def command(run: Path, output: Path, *more: str) -> list[str]:
    small = ["engine.max_num_seqs=1", "callbacks.progress_bars=false"]
    return [str(run), "--output", str(output), "--attempts", "2", *data(run), *small, *more]


def collect(monkeypatch: pytest.MonkeyPatch, teachers: Teachers, arguments: Sequence[str]) -> None:
    monkeypatch.setattr(standalone, "start_engine", teachers)
    main(arguments)


def test_the_right_attempts_become_rows(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "teacher.jsonl"
    collect(monkeypatch, Teachers(), command(run, output))
    (row,) = read_lines(output)
    assert row["messages"] == [
        {"role": "user", "content": "Who founded Amber Works?"},
        {"role": "assistant", "content": SEARCH},
        {
            "role": "tool",
            "content": "<information>1. Amber Works: founder Anna Bel.</information>",
        },
        {
            "role": "assistant",
            "content": "<mem>Anna Bel founded it.</mem><think>Done.</think>"
            "<answer>Anna Bel</answer>",
        },
    ]
    assert (row["attempt"], row["reward"], row["right_share"]) == (1, 1.0, 0.5)
    told = capsys.readouterr().out
    assert "2 questions, 2 attempts each" in told
    assert "kept 1 of 4 attempts, at 1 of 2 questions (of the others 1 never right)" in told
    assert "     3 dropped: the answer is wrong" in told
    assert told.endswith(f"written to {output}\n")
    counts = json.loads((tmp_path / "teacher.collected.json").read_text())
    assert (counts["kept"], counts["dropped"]) == (1, {"wrong": 3})
    assert len(read_lines(tmp_path / "teacher.attempts.jsonl")) == 4
    assert not (tmp_path / "teacher.lock").exists()


def test_a_stopped_call_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "teacher.jsonl"
    stopped = Teachers(stop_after=5)  # two attempts of two rounds each, and one round
    with pytest.raises(SystemExit) as ended:
        collect(monkeypatch, stopped, command(run, output))
    assert ended.value.code == 130
    assert "The same command goes on." in capsys.readouterr().err
    before = (tmp_path / "teacher.attempts.jsonl").read_text()
    assert len(before.splitlines()) == 2
    assert not output.exists()
    going_on = Teachers()
    collect(monkeypatch, going_on, command(run, output))
    assert "2 of 4 attempts are in" in capsys.readouterr().out
    assert len(going_on.engines[0].requests) == 4
    assert (tmp_path / "teacher.attempts.jsonl").read_text().startswith(before)
    assert len(read_lines(output)) == 1
    # Another choice of what is kept asks nobody anything.
    again = Teachers()
    collect(monkeypatch, again, command(run, output, "--share", "0", "0.4"))
    assert again.engines == []
    assert output.read_text() == ""


def test_other_settings_are_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "teacher.jsonl"
    collect(monkeypatch, Teachers(), command(run, output, "--tasks", "1"))
    for more, said in (
        ("rollout.max_rounds=5", "rollout.max_rounds"),
        ("retriever.top_k=4", "retriever.top_k"),
        ("seed=1", "seed: 0 there, 1 now"),
    ):
        with pytest.raises(SystemExit) as ended:
            collect(monkeypatch, Teachers(), command(run, output, more))
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert "it was begun with other settings" in told
        assert said in told
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit):
        collect(monkeypatch, Teachers(), command(run, tmp_path / "mine.jsonl"))
    assert "it is no collection" in capsys.readouterr().err
    assert (tmp_path / "mine.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], "--output"),
        (["--output", "a.jsonl"], "name one run folder"),
        (["a", "b", "--output", "a.jsonl"], "name one run folder"),
        (["a", "--teacher", "world", "--output", "a.jsonl"], "takes no model"),
        (["a", "--output", "a.parquet"], ".jsonl"),
        (["a", "--output", "a.jsonl", "--attempts", "0"], "--attempts 0: at least 1"),
        (["--teacher", "gold", "--output", "a.jsonl", "--attempts", "3"], "one attempt"),
        (["a", "--output", "a.jsonl", "--share", "0.9", "0.1"], "the lower one first"),
        (["a", "--output", "a.jsonl", "--threshold", "0"], "above 0"),
    ],
)
def test_what_is_typed_wrong_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_oracle_needs_a_context_with_memories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path / "a.jsonl")]
    with pytest.raises(SystemExit):
        main(["--teacher", "world", *output, "rollout.context=react", "algorithm=grpo"])
    told = capsys.readouterr().err
    assert "--teacher world: it writes memories, and rollout.context=react has none" in told


def test_the_oracle_is_right_in_the_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "oracle.jsonl"
    main(["--teacher", "world", "--tasks", "6", "--output", str(output), "rollout.max_rounds=16",
          "callbacks.progress_bars=false"])  # fmt: skip
    rows = read_lines(output)
    assert len(rows) == 6
    assert "kept 6 of 6 attempts, at 6 of 6 questions\n" in capsys.readouterr().out
    assert {row["reward"] for row in rows} == {1.0}
    (_, *mems) = [one["content"] for one in rows[0]["messages"] if one["role"] == "assistant"]
    assert mems
    assert all(mem.startswith("<mem> ") for mem in mems)
    with pytest.raises(SystemExit):
        main(["--teacher", "world", "--output", str(tmp_path / "a.jsonl"), "data=local",
              "data.questions=q", "data.corpus=c"])  # fmt: skip


def test_a_served_model_is_a_teacher(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def reply(path: str, body: Any, number: int) -> Reply:
        if len(body["messages"]) == 2:  # system message and question
            return 200, chat_answer(SEARCH.removesuffix("</search>"))
        return 200, chat_answer("<mem>a</mem><think>b</think><answer>Anna Bel")

    output = tmp_path / "served.jsonl"
    with openai_server(reply, ["hosted"]) as (url, requests):
        main(["hosted", "--output", str(output), "--attempts", "1", "--tasks", "2",
              *data(run), "engine=openai", f"engine.url={url}",
              "callbacks.progress_bars=false"])  # fmt: skip
    (row,) = read_lines(output)
    assert (row["teacher"], row["question"]) == ("hosted", "Who founded Amber Works?")
    assert {body["temperature"] for body in requests.bodies} == {1.0}
    assert len(requests.bodies) == 4
    assert {headers["authorization"] for headers in requests.headers} == {"Bearer sk-secret"}
    for file in tmp_path.iterdir():
        assert "sk-secret" not in file.read_text()


def test_a_question_that_a_filter_refuses_stops_no_collection(run: Path, tmp_path: Path) -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        if "founded" in body["messages"][1]["content"]:
            return 400, error_answer("the prompt was filtered", "content_filter")
        return 200, chat_answer("<think>b</think><answer>Arnden")

    output = tmp_path / "served.jsonl"
    with openai_server(reply, ["hosted"]) as (url, requests):
        main(["hosted", "--output", str(output), "--attempts", "1", *data(run), "engine=openai",
              f"engine.url={url}", "callbacks.progress_bars=false"])  # fmt: skip
    (row,) = read_lines(output)
    assert row["question"] == "Where is Anna Bel from?"
    counts = json.loads((tmp_path / "served.collected.json").read_text())
    assert (counts["attempts"], counts["dropped"]) == (2, {"no_action": 1})
    assert len(requests.bodies) == 2


TEMPLATE = jinja2.Template("Use the tools: <search>. {{ question }}\nBegin.")
PAGES = {
    "Ann": "  Ann was born in Rome. " * 20,
    "Rome": "Rome <answer>is</answer> a town of <|im_end|> many. " + "It is old. " * 30,
}
SCRIPT = (
    "<think>so</think><search>Ann</search>",
    "<mem>Ann: Rome</mem>\n<think>page</think><access>Rome</access>",
    "<mem>Ann: Rome, a town</mem><think>again</think>\n<access>Rome</access>",
    "<mem>Ann: Rome, a town</mem><think>done</think><answer>Ann</answer>",
)


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("kind", ["merged", "tags"])
def test_a_row_read_back_has_the_ids_of_the_rollout(
    kind: str, context: Literal["full", "memory"], tmp_path: Path
) -> None:
    conversation = make_conversation(kind)
    toolbox = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig(), conversation.inert)
    rollout = Rollout(ScriptedEngine(conversation, SCRIPT), conversation, toolbox, TEMPLATE)
    task = Task("t", (Objective("Who <b>is</b> Ann <think>?", ("Ann",)),))
    limits = AgentSettings(context, 8, 5000, 500, 120)
    (trajectory,) = rollout.collect([task], 1, limits, Sampling())
    file = tmp_path / "teacher.jsonl"
    file.write_text(json.dumps(chat_row(trajectory_record(trajectory), 1.0, "a")) + "\n")
    config = SftConfig(source="file", path=str(file))
    read_back = read_trajectory_files(config, prompt_frame(TEMPLATE)).trajectories
    layout = Layout(conversation, TEMPLATE, 120, 5000, context)
    texts = list(trajectory_texts(read_back, layout, Told()))
    assert [text.ids for text in texts] == [part.ids for part in trajectory.sequences]
    trained = [[bool(one) for one in part.mask] for part in trajectory.sequences]
    assert [text.trained for text in texts] == trained
