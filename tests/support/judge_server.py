"""A real server on loopback that speaks /v1/chat/completions, with a script for a model."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

MODEL = "scripted"


@dataclass(frozen=True)
class Asked:
    """One request: its body, its headers, and what the default prompt says in it."""

    body: dict[str, Any]
    headers: dict[str, str]
    question: str = ""
    golds: list[str] = field(default_factory=list)
    answer: str = ""


Script = Callable[[Asked, int], str | int | Response]
"""Takes a request and its number, from 0; gives the reply, or a status, or a response."""


class JudgeServer:
    """What it was asked, and where it is."""

    def __init__(self, script: Script, key: str | None = None) -> None:
        self.asked: list[Asked] = []
        self.url = ""
        self._script = script
        self._key = key
        self._lock = threading.Lock()
        self.app = Starlette(
            routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])]
        )

    @property
    def settings(self) -> list[str]:
        """Overrides that name this server's model as the judge."""
        return ["reward=judge", f"reward.judge.url={self.url}", f"reward.judge.model={MODEL}"]

    async def _complete(self, request: Request) -> Response:
        asked = read_request(await request.json(), dict(request.headers))
        if self._key is not None and asked.headers.get("authorization") != f"Bearer {self._key}":
            return error(401, f"wrong key {asked.headers.get('authorization')}")
        if asked.body["model"] != MODEL:
            return error(404, f"the model {asked.body['model']} does not exist")
        with self._lock:
            number = len(self.asked)
            self.asked.append(asked)
        said = await run_in_threadpool(self._script, asked, number)
        if isinstance(said, Response):
            return said
        return error(said, "scripted") if isinstance(said, int) else completion(said)


def read_request(body: dict[str, Any], headers: dict[str, str]) -> Asked:
    (message,) = body["messages"]
    assert message["role"] == "user"
    found = re.search(
        r"^Question: (.*)$\n^Accepted answers, each of them right: (.*)$\n"
        r"^Answer to check: (.*)$",
        message["content"],
        re.MULTILINE,
    )
    texts = [json.loads(part) for part in found.groups()] if found else []
    return Asked(body, headers, *texts)


def error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "scripted"}}, status)


def completion(text: str) -> JSONResponse:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return JSONResponse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }
    )


def no_completion() -> Response:
    """What a web server says that is no language model."""
    return PlainTextResponse("<html>welcome</html>")


@contextmanager
def judge_server(script: Script, key: str | None = None) -> Iterator[JudgeServer]:
    """Runs the server in a thread, on a free port, until the block ends."""
    judge = JudgeServer(script, key)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    web = uvicorn.Server(uvicorn.Config(judge.app, log_level="warning"))
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not web.started:
            time.sleep(0.005)
        judge.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        yield judge
    finally:
        web.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive()


def same_words(asked: Asked, number: int) -> str:
    """A judge for whom capitals and a title change nothing."""
    plain = asked.answer.lower().removeprefix("dr. ")
    return "yes" if plain in [gold.lower() for gold in asked.golds] else "No."
