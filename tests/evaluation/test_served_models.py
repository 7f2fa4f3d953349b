"""``evaluate.py`` and asking with a server in place of the in-process engine (specification section
9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mempo.ask.loading import load_agent
from mempo.command.cli import compose
from mempo.command.run_settings import evaluation_settings
from mempo.evaluation.models import evaluated_models
from mempo.evaluation.standalone import evaluate_models
from mempo.runtime.errors import ConfigError
from tests.support.asked import QUESTION, make_run
from tests.support.openai_servers import chat_answer, error_answer, openai_server
from tests.support.programs import read_lines
from tests.support.servers import Reply

SECRET = "sk-never-written"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("served") / "run")
    rows = [{"question": QUESTION, "answer": "Anna Bel"}, {"question": "Where?", "answer": "here"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "questions.jsonl").write_text(text)
    return folder


def data(run: Path) -> list[str]:
    file = f"{run}/questions.jsonl"
    files = [f"data.questions={file}", f"data.heldout_questions={file}"]
    return ["data=local", *files, f"data.corpus={run}/passages.jsonl"]


def answer(path: str, body: Any, number: int) -> Reply:
    """One search, then as hosted models do: without the stop text."""
    if path != "/v1/chat/completions":
        return 404, error_answer("no such path")
    if len(body["messages"]) == 2:
        return 200, chat_answer("<think>a</think><search>Amber Works")
    who = "Anna Bel" if body["model"] == "good" else "nobody"
    return 200, chat_answer(f"<mem>a</mem><think>b</think><answer>{who}")


def test_models_of_one_server_in_one_table(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with openai_server(answer, ["good", "bad"]) as (url, requests):
        overrides = [
            *data(run), "engine=openai", f"engine.url={url}", "evaluation.models=[good,bad]",
            "evaluation.contexts=[memory]", "callbacks.progress_bars=false",
        ]  # fmt: skip
        settings = evaluation_settings(overrides, str(tmp_path))
        found = evaluate_models(settings.config, own=settings.own)
        asked = len(requests.bodies)
        assert evaluate_models(settings.config, own=settings.own) == found
        assert len(requests.bodies) == asked
    assert found["good/memory"]["exact_match"] == 50.0
    assert found["bad/memory"]["exact_match"] == 0.0
    assert found["good/memory"]["format_valid"] == 1.0
    assert {headers["authorization"] for headers in requests.headers} == {f"Bearer {SECRET}"}
    assert {body["temperature"] for body in requests.bodies} == {0.0}
    lines = read_lines(tmp_path / "trajectories.jsonl")
    assert {line["total_tokens"] > 0 for line in lines} == {True}
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_a_run_is_asked_on_a_server(run: Path) -> None:
    """With the run's own tokenizer and instructions; this server takes no token ids."""
    with (
        openai_server(answer, ["good"]) as (url, requests),
        load_agent(
            run,
            overrides=["engine=openai", f"engine.url={url}", f"data.corpus={run}/passages.jsonl"],
        ) as agent,
    ):
        result = agent.ask(QUESTION)
    assert result.answer == "Anna Bel"
    assert [one.action for one in result.rounds] == ["search", "answer"]
    paths = [path.rsplit("/v1/")[1] for path in requests.paths]
    assert paths == ["completions", "chat/completions", "chat/completions"]
    assert {body["model"] for body in requests.bodies} == {"good"}


def test_one_served_model_is_not_several() -> None:
    served = ["engine=openai", "engine.url=http://h/v1", "engine.served_model=a", "model=tiny"]
    config = compose("evaluate", [*served, "evaluation.models=[a,b]"])
    with pytest.raises(ConfigError, match=r"engine\.served_model=a is one model.* names 2"):
        evaluated_models(config)
