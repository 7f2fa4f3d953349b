"""Who may ask a served agent, and what its page is told (around the method)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mempo.ask.agent import LoadedAgent
from mempo.ask.loading import load_agent
from mempo.ask.served.access import own_machine, read_origins, read_token
from mempo.ask.served.answering import Answering, Event, Failed, Finished
from mempo.ask.served.application import make_application
from mempo.runtime.errors import MempoError
from tests.support.asked import QUESTION, Starts, by_question, make_run
from tests.support.served import post, served

TOKEN = "0123456789abcdef-secret"
BODY = {"model": "run", "messages": [{"role": "user", "content": QUESTION}]}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LoadedAgent]]:
    run = make_run(tmp_path_factory.mktemp("asked") / "run")
    passages = f"data.corpus={run}/passages.jsonl"
    two = [load_agent(run, overrides=[passages], start=Starts(by_question)) for _ in range(2)]
    yield two
    for one in two:
        one.close()


@pytest.fixture(scope="module")
def address(agents: list[LoadedAgent]) -> Iterator[str]:
    with served(agents[0], example="Who?") as one:
        yield one


@pytest.fixture
def agent(agents: list[LoadedAgent]) -> LoadedAgent:
    """One that nobody asks."""
    return agents[1]


def told(address: str, question: str, context: str = "memory") -> list[dict[str, Any]]:
    body = {"question": question, "context": context}
    answer = httpx.post(f"{address}/page/ask", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


# The page


def test_the_page_is_told_each_round_with_what_the_memory_changed(address: str) -> None:
    first, *rounds, end = told(address, "After 3 searches?")
    assert first == {"event": "accepted"}
    assert [one["number"] for one in rounds] == [1, 2, 3, 4]
    assert [one["difference"] for one in rounds] == [
        None,
        [["added", "so far 1"]],
        [["same", "so far "], ["removed", "1"], ["added", "2"]],
        [["same", "so far "], ["removed", "2"], ["added", "3"]],
    ]
    assert [one["first"] for one in rounds] == [True, True, False, False]
    assert rounds[0]["observation"] == "1. Amber Works: founder Anna Bel."
    assert (rounds[0]["action"], rounds[0]["argument"], rounds[0]["thought"]) == (
        "search", "Amber Works", "a",
    )  # fmt: skip
    assert (end["event"], end["answered"], end["text"]) == ("ended", True, "3 done")
    assert end["used"].startswith("4 rounds, 3 tool calls, ")


def test_an_ending_without_an_answer_is_a_sentence(address: str) -> None:
    *_, one, end = told(address, "Will you say nothing?", "full")
    assert one["wrote"] == "<think>a</think>"
    assert (end["answered"], end["text"]) == (
        False, "the last round neither searches, opens a page nor answers",
    )  # fmt: skip


def test_what_fails_is_told_to_the_page(address: str) -> None:
    path, context = "/page/ask", {"context": "memory"}
    assert told(address, "break the engine")[-1] == {
        "event": "failed",
        "cause": "engine",
        "message": "the engine failed: RuntimeError: the engine broke",
    }
    for body, sentence in (
        ({"question": " ", **context}, "the question is empty"),
        ({"question": "Who?", "context": "ful"}, "there is no context 'ful'"),
        ({"question": "Who?"}, '"context" must be a text'),
        ({"question": 3, **context}, '"question" must be a text'),
    ):
        status, answer = post(address, body, path)
        assert (status, sentence in answer["error"]["message"]) == (400, True)
    assert told(address, QUESTION)[-1]["text"] == "Anna Bel"


def test_the_page_runs_its_own_script_alone(address: str) -> None:
    page = httpx.get(f"{address}/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for name in ("script", "style"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert not re.search(r"(src|href)=\"(?!data:,)", page.text)
    assert "innerHTML" not in page.text
    about = httpx.get(f"{address}/page/about").json()
    assert (about["name"], about["example"], about["contexts"][:2]) == (
        "run", "Who?", ["memory", "full"],
    )  # fmt: skip


# Who may ask


def test_other_sites_are_not_answered(address: str) -> None:
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": address}, 200),
        ({"Host": "localhost:99"}, 200),  # through a tunnel
        ({"Host": "127.0.0.2"}, 200),
        ({"Host": "127.0.0.2.5"}, 403),
        ({"Host": "[::1]:99"}, 200),
    ):
        assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status, headers
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        found = httpx.post(
            f"{address}/v1/chat/completions",
            content=json.dumps(BODY),
            headers={"Content-Type": kind},
        )
        assert found.status_code == 415
        assert "Content-Type: application/json" in found.json()["error"]["message"]


def test_a_token_opens_everything_but_the_page(agent: LoadedAgent) -> None:
    with served(agent, token=TOKEN, own_names=False) as address:
        for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
            for path in ("/page/about", "/v1/models"):
                found = httpx.get(f"{address}{path}", headers=headers)
                assert found.status_code == 401
                assert found.headers["www-authenticate"] == "Bearer"
                assert found.json()["error"]["code"] == "invalid_api_key"
            assert post(address, BODY, headers=headers)[0] == 401
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "a.machine", "Origin": "http://x"}
        assert post(address, BODY, headers=right)[0] == 200
        page = httpx.get(f"{address}/")
        assert page.status_code == 200
        assert TOKEN not in page.text


def test_a_token_is_needed_where_other_machines_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMPO_TOKEN", raising=False)
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        assert own_machine(host)
        assert read_token(host, "MEMPO_TOKEN", named=False) is None
    for host in ("0.0.0.0", "::", "192.168.1.2", "machine"):
        assert not own_machine(host)
        with pytest.raises(MempoError, match=r"there is no token: .* export MEMPO_TOKEN="):
            read_token(host, "MEMPO_TOKEN", named=False)
    with pytest.raises(MempoError, match="MINE is empty"):
        read_token("127.0.0.1", "MINE", named=True)
    for weak in ("short", "0123456789abcdef with space", "0123456789abcdefé"):
        monkeypatch.setenv("MINE", weak)
        with pytest.raises(MempoError, match="must be at least 16 characters") as caught:
            read_token("0.0.0.0", "MINE", named=True)
        assert weak not in str(caught.value)
    monkeypatch.setenv("MINE", TOKEN)
    assert read_token("0.0.0.0", "MINE", named=True) == TOKEN
    monkeypatch.setenv("MEMPO_TOKEN", TOKEN)
    assert read_token("127.0.0.1", "MEMPO_TOKEN", named=False) == TOKEN


def test_a_client_that_leaves_before_its_body_has_come_is_no_fault(agent: LoadedAgent) -> None:
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    # What is raised here is a traceback on the server's terminal.
    asyncio.run(make_application(agent, Answering(agent))(scope, receive, send))
    assert [one.get("status") for one in sent] == [499, None]


# The end


def test_questions_fail_when_the_server_stops(agent: LoadedAgent) -> None:
    answering, events = Answering(agent), list[Event]()
    thread = threading.Thread(target=answering.run)
    answering.ask("After 3 searches?", None, events.append)
    answering.stop()
    answering.ask(QUESTION, None, events.append)
    thread.start()
    thread.join(20)
    answering.ask(QUESTION, None, events.append)
    ends = [one for one in events if isinstance(one, Failed | Finished)]
    assert [str(one.cause) for one in ends if isinstance(one, Failed)] == ["stopped"] * 3
    assert len(ends) == 3
    assert agent.ask(QUESTION).answer == "Anna Bel"  # the agent is free again


def test_one_call_at_a_time(agents: list[LoadedAgent], address: str) -> None:
    with pytest.raises(MempoError, match="answering another question"):
        agents[0].ask(QUESTION)
    answering, events = Answering(agents[0]), list[Event]()
    answering.ask(QUESTION, None, events.append)
    with pytest.raises(MempoError, match="answering another question"):
        answering.run()
    assert [type(one) for one in events] == [Failed]


# Pages of other origins

CHAT_PAGE = "http://localhost:3000"


def test_a_named_page_from_elsewhere_may_ask(agent: LoadedAgent) -> None:
    asks = {"Origin": CHAT_PAGE, "Access-Control-Request-Method": "POST"}
    wants = {**asks, "Access-Control-Request-Headers": "authorization,content-type"}
    with served(agent, token=TOKEN, origins=[CHAT_PAGE]) as address:
        url = f"{address}/v1/chat/completions"
        before = httpx.options(url, headers=wants)  # what a browser asks first, without a token
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == CHAT_PAGE
        assert "authorization" in before.headers["access-control-allow-headers"]
        key = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.post(url, json=BODY, headers={"Origin": CHAT_PAGE, **key}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == CHAT_PAGE
        # One that reads why it was refused, and two that are not told.
        refused = httpx.post(url, json=BODY, headers={"Origin": CHAT_PAGE})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == CHAT_PAGE
        other = {"Origin": "http://localhost:3001"}
        assert httpx.options(url, headers={**wants, **other}).status_code == 400
        strange = httpx.post(url, json=BODY, headers={**other, **key})
        assert strange.status_code == 403
        assert "access-control-allow-origin" not in strange.headers


@pytest.mark.parametrize("origin", ["*", "null", "localhost:3000", "http://a.org/chat", ""])
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    with pytest.raises(MempoError, match="--allow-origin"):
        read_origins([origin])
    assert read_origins([CHAT_PAGE, "https://chat.example.org"]) == (
        CHAT_PAGE,
        "https://chat.example.org",
    )
