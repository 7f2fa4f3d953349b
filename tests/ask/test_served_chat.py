"""The agent as a chat-completions endpoint, asked by the ``openai`` package (around the method)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from mempo.agent.protocol import DEFAULT_PROTOCOL
from mempo.ask.loading import load_agent
from mempo.ask.served import answering, bodies, events
from mempo.ask.served.chat_reply import thought_text
from mempo.retrieval import RankBm25Retriever
from mempo.retrieval.base import Passage
from mempo.runtime.errors import MempoError
from mempo.trajectory import Round
from tests.support.asked import ASKED, QUESTION, Starts, by_question, make_run, own_tools
from tests.support.docs_examples import example
from tests.support.served import post, served

FOUND = "<information>1. Amber Works: founder Anna Bel.</information>"
LAST = "<mem>Amber Works founder Anna Bel.</mem><think>Done.</think>"
TRANSCRIPT = f"{ASKED}\n{FOUND}\n{LAST}"


class Served:
    """One agent and its stand-in engine, under an address for each way with the rounds."""

    def __init__(self, run: Path) -> None:
        self.starts = Starts(by_question)
        passages = f"data.corpus={run}/passages.jsonl"
        self.agent = load_agent(run, overrides=[passages], start=self.starts)

    @property
    def engine(self) -> Any:
        return self.starts.engines[0]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(make_run(tmp_path_factory.mktemp("asked") / "run"))
    with one.agent:
        yield one


@pytest.fixture(scope="module")
def hidden(asked: Served) -> Iterator[str]:
    with served(asked.agent) as address:
        yield address


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)


def ask(client: openai.OpenAI, question: str = QUESTION, **named: Any) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="run", messages=messages, **named)


def sizes(requests: Any) -> tuple[int, int]:
    return sum(len(one.prompt_ids) for one in requests), sum(
        len(one.generation.ids) for one in requests
    )


def test_an_answer_with_its_tokens(asked: Served, hidden: str) -> None:
    before = len(asked.engine.requests)
    reply = ask(client_of(hidden))
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("Anna Bel", "stop")
    assert "reasoning_content" not in (choice.message.model_extra or {})
    sent, sampled = sizes(asked.engine.requests[before:])
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (sent, sampled)
    assert reply.usage.total_tokens == sent + sampled
    told = reply.model_extra["mempo"]
    assert (told["ending"], told["rounds"], told["tool_calls"]) == ("answered", 2, 1)
    assert client_of(hidden).models.list().data[0].id == "run"
    assert client_of(hidden).models.retrieve("run").id == "run"


def test_a_stream(hidden: str) -> None:
    chunks = list(ask(client_of(hidden), stream=True, stream_options={"include_usage": True}))
    assert [one.choices[0].delta.content for one in chunks[:-1]] == ["", "Anna Bel", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens > 100) == ([], True)
    assert len({one.id for one in chunks}) == 1
    assert [one.usage for one in ask(client_of(hidden), stream=True)] == [None] * 3
    raw = httpx.post(f"{hidden}/v1/chat/completions", json={
        "model": "run", "stream": True, "messages": [{"role": "user", "content": QUESTION}],
    })  # fmt: skip
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.text.endswith("data: [DONE]\n\n")


def test_a_limit_that_is_reached_is_told_as_length(hidden: str) -> None:
    client = client_of(hidden)
    reply = ask(client, "After 9 searches?")  # more rounds than the run's six
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("", "length")
    assert reply.model_extra["mempo"]["ending"] == "max_rounds"
    reply = ask(client, "Will you say nothing?")
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("", "stop")
    assert reply.model_extra["mempo"]["ending"] == "no_action"


@pytest.mark.parametrize("rounds", ["reasoning", "whole"])
def test_rounds_as_reasoning_and_whole(tmp_path: Path, rounds: str) -> None:
    one = Served(make_run(tmp_path / "run"))
    with one.agent, served(one.agent, rounds=rounds) as address:
        whole = ask(client_of(address)).choices[0].message
        chunks = list(ask(client_of(address), stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    streamed = "".join(one.content or "" for one in deltas)
    thoughts = [(one.model_extra or {}).get("reasoning_content") for one in deltas]
    told = "".join(one for one in thoughts if one)
    assert whole.content == streamed
    if rounds == "whole":
        assert streamed == f"{TRANSCRIPT}<answer>Anna Bel</answer>\n"
        assert told == ""
    else:
        assert (streamed, told) == ("Anna Bel", TRANSCRIPT)
        assert [one for one in thoughts if one] == [f"{ASKED}\n{FOUND}\n", LAST]
        extra = whole.model_extra or {}
        assert extra["reasoning_content"] == extra["reasoning"] == TRANSCRIPT


def test_sixteen_at_once_are_the_same_as_one_by_one(asked: Served, hidden: str) -> None:
    client = client_of(hidden)
    questions = [f"After {number % 5} searches? {number}" for number in range(16)]
    before = len(asked.engine.requests)
    with ThreadPoolExecutor(16) as pool:
        many = list(pool.map(lambda one: ask(client, one), questions))
    together = asked.engine.requests[before:]
    assert [one.choices[0].message.content for one in many] == [
        f"{number % 5} done" for number in range(16)
    ]
    one_by_one = [ask(client, one) for one in questions]
    assert [one.usage for one in many] == [one.usage for one in one_by_one]
    # No lock-step, and none after the other: keys of several questions alternate.
    keys = [one.key for one in together]
    changes = sum(a != b for a, b in pairwise(keys))
    assert changes > 20


def test_the_last_user_message_is_the_question(hidden: str) -> None:
    messages: Any = [
        {"role": "system", "content": "Speak like a pirate."},
        {"role": "user", "content": "After 3 searches?"},
        {"role": "assistant", "content": "3 done"},
        {"role": "user", "content": [{"type": "text", "text": "After 1"},
                                     {"type": "text", "text": "searches?"}]},
    ]  # fmt: skip
    del messages[3]["content"][1]
    messages[3]["content"][0]["text"] = "After 1 searches?"
    reply = client_of(hidden).chat.completions.create(model="run", messages=messages)
    assert reply.choices[0].message.content == "1 done"


USER = [{"role": "user", "content": QUESTION}]


@pytest.mark.parametrize(
    ("change", "status", "param", "sentence"),
    [
        ({"model": "gpt-4"}, 404, "model", "no model 'gpt-4': this server has 'run'"),
        ({"model": None}, 400, "model", "must name a model"),
        ({"messages": None}, 400, "messages", "must be a list of messages"),
        ({"messages": []}, 400, "messages", "must be a list of messages"),
        ({"messages": ["hi"]}, 400, "messages[0]", "must be an object with a"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "messages", "role user"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content", "a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages[0].content",
            "a part that is no text",
        ),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "messages", "is empty"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, 400, "messages", "not valid text"),
        ({"n": 2}, 400, "n", '"n" must be 1'),
        ({"tools": [{"type": "function"}]}, 400, "tools", "tools of its own"),
        ({"logprobs": True}, 400, "logprobs", "without log-probabilities"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "own text"),
        ({"stream": "yes"}, 400, "stream", "true or false"),
        ({"stream_options": 3}, 400, "stream_options", "an object"),
    ],
)
def test_faulty_requests_are_told_in_the_protocols_shape(
    hidden: str, change: dict[str, Any], status: int, param: str, sentence: str
) -> None:
    body = {"model": "run", "messages": USER, **change}
    found = httpx.post(
        f"{hidden}/v1/chat/completions",
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )
    error = found.json()["error"]
    assert (found.status_code, error["param"], error["type"]) == (
        status,
        param,
        "invalid_request_error",
    )
    assert sentence in error["message"]


def test_harmless_parameters_are_taken(hidden: str) -> None:
    reply = ask(
        client_of(hidden), temperature=0.7, max_tokens=5, n=1, seed=3, stop=["x"], tools=[],
        response_format={"type": "text"}, extra_body={"top_k": 4},
    )  # fmt: skip
    assert reply.choices[0].message.content == "Anna Bel"


def test_what_is_no_request(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"Content-Type": "application/json"}
    for body in (b"{oops", b"[" * 100_000, b"\xff"):
        found = httpx.post(f"{hidden}/v1/chat/completions", content=body, headers=kind)
        assert (found.status_code, found.json()["error"]["message"]) == (
            400, "the body is not JSON",
        )  # fmt: skip
    assert post(hidden, ["x"])[0] == 400
    for path, method, status in (("/v1/embeddings", "POST", 404), ("/v1/models", "POST", 405),
                                 ("/v1/models/other", "GET", 404)):  # fmt: skip
        found = httpx.request(method, f"{hidden}{path}", headers=kind)
        assert found.status_code == status
        assert found.json()["error"]["type"] == "invalid_request_error"
    monkeypatch.setattr(bodies, "MOST_BYTES", 100)
    assert post(hidden, {"model": "x" * 200})[0] == 413


def test_a_question_that_is_too_long(asked: Served, hidden: str) -> None:
    long = "word " * asked.engine.max_model_len
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="the question is too long") as caught:
            ask(client_of(hidden), long, stream=stream)
        assert caught.value.code == "context_length_exceeded"


def test_an_engine_that_raises_fails_those_on_their_way_and_no_other(
    asked: Served, hidden: str
) -> None:
    client, aborted = client_of(hidden), asked.engine.aborted
    with pytest.raises(openai.InternalServerError, match="the engine broke") as caught:
        ask(client, "break the engine")
    assert (caught.value.status_code, caught.value.code) == (500, "engine_failed")
    assert asked.engine.aborted == aborted + 1
    with pytest.raises(openai.APIError, match="the engine broke"):
        list(ask(client, "break the engine", stream=True))
    assert ask(client).choices[0].message.content == "Anna Bel"


class Held:
    """Holds searches back until ``release``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.came, self._released = threading.Event(), threading.Event()
        self._search = search = RankBm25Retriever.search
        self._monkeypatch = monkeypatch

        def slow(retriever: RankBm25Retriever, query: str, top_k: int) -> list[Passage]:
            self.came.set()
            assert self._released.wait(20)
            return search(retriever, query, top_k)

        monkeypatch.setattr(RankBm25Retriever, "search", slow)

    def later_ones_pass(self) -> None:
        """Those that have come stay held."""
        assert self.came.wait(20)
        self._monkeypatch.setattr(RankBm25Retriever, "search", self._search)

    def release(self) -> None:
        self._released.set()


def test_an_engine_that_raises_ends_all_that_are_on_their_way(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, held = client_of(hidden), Held(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, client)
        held.later_ones_pass()
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="the engine broke"):
                ask(client, "break the engine")
        with pytest.raises(openai.InternalServerError, match="the engine broke"):
            other.result()
        held.release()
    assert ask(client).choices[0].message.content == "Anna Bel"


def test_a_silent_stream_says_that_it_goes_on(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ALIVE_SECONDS", 0.02)
    held = Held(monkeypatch)
    body = {"model": "run", "messages": USER, "stream": True}
    lines = []
    with httpx.stream("POST", f"{hidden}/v1/chat/completions", json=body, timeout=20) as one:
        for line in one.iter_lines():
            lines.append(line)
            if line == ": still at work":
                held.release()
    assert ": still at work" in lines
    assert lines[-2] == "data: [DONE]"
    chunks = list(ask(client_of(hidden), stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "Anna Bel"


def test_failing_tools_fail_their_question_alone(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = RankBm25Retriever.search

    def broken(self: RankBm25Retriever, query: str, top_k: int) -> list[Passage]:
        if query == "bug":
            raise ZeroDivisionError("a bug in the retriever")
        return search(self, query, top_k)

    monkeypatch.setattr(RankBm25Retriever, "search", broken)
    client = client_of(hidden)
    with ThreadPoolExecutor(2) as pool:
        bug = pool.submit(ask, client, "use the bug")
        assert ask(client, "After 3 searches?").choices[0].message.content == "3 done"
        with pytest.raises(openai.APIStatusError, match="1 of 1 tool calls failed") as caught:
            bug.result()
    assert (caught.value.status_code, caught.value.code) == (503, "tool_calls_failed")


def test_an_agent_with_tools_of_its_own(tmp_path: Path) -> None:
    """Each is judged by its own rate, and the rounds are read with their tags."""
    fault, shout = (f"tests.support.own_tools.{name}" for name in ("fault", "shout"))
    tools: list[dict[str, Any]] = [
        {"_target_": shout, "tag": "shout", "description": "to say it loudly"},
        {"_target_": fault, "tag": "fault", "description": "to go wrong"},
        {"_target_": fault, "tag": "kept", "description": "to go on", "max_error_rate": 1.0},
    ]
    run = make_run(tmp_path / "run", ("experiment=debug", "sft.enabled=false"), tools)
    # One of five calls, which the share for all together (0.2) would let pass.
    sentence = (
        "1 of 1 calls of the tool fault .* more than retriever.max_tool_error_rate=0.2 allows"
    )
    with load_agent(run, overrides=["sft=none"], start=Starts(own_tools)) as agent:
        with served(agent, rounds="reasoning") as address:
            client = client_of(address)
            with pytest.raises(openai.APIStatusError, match=sentence):
                ask(client, "use fault")
            kept = ask(client, "use kept")
            said = ask(client, "say search").choices[0].message
            deltas = [one.choices[0].delta for one in ask(client, "say search", stream=True)]
        with pytest.raises(MempoError, match="1 of 1 calls of the tool fault"):
            agent.ask("use fault")
        assert agent.ask("use kept").answer == kept.choices[0].message.content == "4 done"
    assert kept.model_extra["mempo"]["tool_calls"] == 5
    thoughts = [(one.model_extra or {}).get("reasoning", "") for one in deltas]
    assert said.content == "".join(one.content or "" for one in deltas) == "5"
    assert (
        said.model_extra["reasoning"] == "".join(thoughts) == "<think>a</think>see <search> here "
    )


def test_too_many_questions(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "MOST_OPEN", 0)
    with pytest.raises(openai.RateLimitError):
        ask(client_of(hidden))


def open_request(address: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which ``body`` is asked and nothing has been read."""
    host, port = address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(head.encode() + content)
    return connection


def test_a_client_that_goes_away_gives_its_question_up(
    asked: Served, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(hidden)
    for stream in (False, True):
        held, before = Held(monkeypatch), len(asked.engine.requests)
        # A plain connection, so that it is closed when its search has begun and not by a clock.
        with open_request(hidden, {"model": "run", "messages": USER, "stream": stream}):
            held.later_ones_pass()
        # Another question is answered in the meantime, and after it the first is forgotten.
        assert ask(client, "After 0 searches?").choices[0].message.content == "0 done"
        held.release()
        ask(client, "After 3 searches?")
        keys = [one.key for one in asked.engine.requests[before:]]
        assert len(keys) == 1 + 1 + 4
        assert len(set(keys)) == 3


def test_the_docs_example_runs(hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With this server's address and passages in place of the page's."""
    text = example("using.md", "python", "As an endpoint for other programs")
    text = text.replace("http://127.0.0.1:8766", hidden)
    exec(text.replace("Who is the teacher of Cara Barka?", QUESTION), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 16
    assert {line.startswith(f"{QUESTION} Anna Bel ") for line in lines[::2]} == {True}


def test_an_answer_in_what_is_no_memory_is_the_content() -> None:
    """A context without memory reads on in an unclosed ``<mem>``; other contexts see its body."""
    text = "<mem>a <answer>Ann</answer>"
    one = Round(1, 0, 0, 0, 9, text=text, action="answer", argument="Ann")
    assert thought_text(one, DEFAULT_PROTOCOL) == "<mem>a "
