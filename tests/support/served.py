"""An agent with a stand-in engine behind the real server, on threads of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from mempo.ask.agent import LoadedAgent
from mempo.ask.served.answering import Answering
from mempo.ask.served.application import make_application


@contextmanager
def served(agent: LoadedAgent, **options: Any) -> Iterator[str]:
    """Answers under the address that it gives; ``options`` are ``make_application``'s."""
    answering = Answering(agent)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    application = make_application(agent, answering, **options)
    web = uvicorn.Server(uvicorn.Config(application, log_level="critical"))
    threads = [
        threading.Thread(target=answering.run),
        threading.Thread(target=web.run, kwargs={"sockets": [listening]}),
    ]
    for thread in threads:
        thread.start()
    try:
        while not web.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        answering.stop()
        web.should_exit = True
        for thread in threads:
            thread.join(20)
        listening.close()
        assert not any(thread.is_alive() for thread in threads)


def post(address: str, body: Any, path: str = "/v1/chat/completions", **named: Any) -> Any:
    """Status and JSON of a request."""
    answer = httpx.post(f"{address}{path}", json=body, timeout=60, **named)
    return answer.status_code, answer.json()
