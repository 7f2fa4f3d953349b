"""``mempo ask --serve`` on the real engine, with the start that the package brings (specification
sections 4 and 9)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mempo.command.cli import compose
from mempo.data.tasks import load_heldout_tasks
from mempo.demonstrations.shipped import SHIPPED
from mempo.trajectory import Task
from tests.support.programs import ROOT, interruptible

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef-secret"
SETTINGS = ["model=tiny", "evaluation.max_rounds=8"]


class Program:
    """The program, started with a token and for all of this machine's addresses."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mempo", "ask", str(SHIPPED), *SETTINGS, "--serve",
                 "--host", "0.0.0.0", "--port", "0", "--token-variable", "MINE",
                 "--rounds", "reasoning"],
                cwd=ROOT, stderr=told, stdout=subprocess.DEVNULL, text=True,
                env={**os.environ, "MINE": TOKEN}, preexec_fn=interruptible,
            )  # fmt: skip

    def address(self) -> str:
        while not (found := re.search(r"http://0\.0\.0\.0:(\d+)/v1", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            try:
                self.process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        return f"http://127.0.0.1:{found[1]}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    one = Program(tmp_path_factory.mktemp("served") / "told")
    yield one
    one.process.kill()
    one.process.wait()


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """Sixteen of the generated world's."""
    config = compose("evaluate", ["model=tiny", "evaluation.objectives=[1,2]"])
    sets = load_heldout_tasks(config).by_objectives
    return [task for tasks in sets.values() for task in tasks[:8]]


def ask(client: openai.OpenAI, question: str) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    reply = client.chat.completions.create(model="shipped", messages=messages)
    assert reply.usage is not None
    details = (reply.model_extra or {})["mempo"]
    answer = reply.choices[0].message.content
    return answer, reply.usage.total_tokens, details["ending"], details["rounds"]


def test_sixteen_questions_at_once_are_answered_as_one_by_one(
    program: Program, tasks: list[Task]
) -> None:
    address = program.address()
    assert httpx.get(f"{address}/v1/models").status_code == 401
    client = openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, timeout=300)
    questions = [task.question for task in tasks]
    with ThreadPoolExecutor(16) as pool:
        served = list(pool.map(lambda one: ask(client, one), questions))
    assert len(served) == 16
    assert served == [ask(client, one) for one in questions]
    right = [one[0] == task.gold for one, task in zip(served, tasks, strict=True)]
    assert sum(right) >= 4  # by the start that the package brings
    stream = client.chat.completions.create(
        model="shipped", messages=[{"role": "user", "content": questions[0]}], stream=True
    )
    chunks = [one.choices[0] for one in stream]
    thoughts = [(one.delta.model_extra or {}).get("reasoning_content") for one in chunks]
    told = [one for one in thoughts if one]
    assert len(told) == served[0][3]
    assert re.match(r"<think>.+</think><search>.+</search>\n<information>1\. ", told[0])
    assert "".join(one.delta.content or "" for one in chunks) == served[0][0]


def test_ctrl_c_ends_it_in_order(program: Program) -> None:
    program.address()
    program.process.send_signal(signal.SIGINT)
    assert program.process.wait(60) == 130
    told = program.log.read_text()
    assert told.endswith("stopped by Ctrl-C. The same command serves again.\n")
    assert "with the token" in told
    assert TOKEN not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "there is no token: other machines reach --host 0.0.0.0"),
        (["--host", "192.0.2.1"], "there is no token"),
        (["--token-variable", "NOT_THERE"], "NOT_THERE is empty"),
        (["a question"], "--serve takes one model and no question"),
        (["--json"], "--serve takes one model and no question"),
        (["--port", "99999"], "--port must be from 0"),
        (["--rounds", "some"], "invalid choice: 'some'"),
    ],
)
def test_what_is_wrong_is_told_before_the_model_is_loaded(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from mempo.ask.__main__ import main

    monkeypatch.delenv("MEMPO_TOKEN", raising=False)
    with pytest.raises(SystemExit) as caught:
        main([str(SHIPPED), "model=tiny", "--serve", *arguments])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split())
    assert "loading" not in told


def test_options_of_serving_go_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    from mempo.ask.__main__ import main

    for option in (["--port", "1"], ["--rounds", "whole"], ["--host", "::1"]):
        with pytest.raises(SystemExit):
            main([str(SHIPPED), "Who?", *option])
        assert f"{option[0]} goes with --serve" in capsys.readouterr().err


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from mempo.ask.__main__ import main

    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(SystemExit) as caught:
        main([str(SHIPPED), "model=tiny", "--serve", "--port", str(other.getsockname()[1])])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "choose another --port" in told
    assert "loading" not in told
