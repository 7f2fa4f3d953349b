"""Servers of OpenAI's protocol with scripted answers, on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.servers import Reply, Requests, answering


def chat_answer(text: str | None, finish: str = "stop") -> bytes:
    """A chat completion as hosted models give it."""
    message = {"role": "assistant", "content": text}
    return _answer({"index": 0, "message": message, "finish_reason": finish})


def completion_answer(text: str, finish: str = "stop", **more: Any) -> bytes:
    """A completion; ``more`` are the fields beyond the protocol, such as ``token_ids``."""
    return _answer({"index": 0, "text": text, "finish_reason": finish, "logprobs": None, **more})


def _answer(choice: dict[str, Any]) -> bytes:
    whole = {"id": "a", "object": "x", "created": 0, "model": "m", "choices": [choice]}
    return json.dumps(whole).encode()


def error_answer(message: str, code: str | None = None) -> bytes:
    """What a server says that refuses."""
    return json.dumps({"error": {"message": message, "code": code, "type": "t"}}).encode()


@contextmanager
def openai_server(
    reply: Callable[[str, Any, int], Reply],
    models: Sequence[str] = ("served",),
    max_model_len: int | None = 4096,
) -> Iterator[tuple[str, Requests]]:
    """Its address with ``/v1``; ``reply`` as in ``answering``. It lists ``models``."""
    length = {} if max_model_len is None else {"max_model_len": max_model_len}
    listed = [{"id": name, "object": "model", **length} for name in models]
    page = json.dumps({"object": "list", "data": listed}).encode()
    with answering(reply, lambda path: page) as (url, requests):
        yield f"{url}/v1", requests
