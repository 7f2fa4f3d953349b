"""What a request for a chat completion asks.

The last user message is the question. What the agent does with it is the agent's own: sampling,
limits and tools are those that it is served with, so ``temperature``, ``max_tokens`` and the like
are read by nobody; what would change the form of the answer is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mempo.ask.served.faults import RequestError

_REFUSED: Final = {
    "tools": "the agent has tools of its own and calls no others",
    "functions": "the agent has tools of its own and calls no others",
    "logprobs": "the answer comes without log-probabilities",
    "top_logprobs": "the answer comes without log-probabilities",
    "audio": "the agent answers in text alone",
}


@dataclass(frozen=True)
class ChatRequest:
    """``include_usage``: a stream ends with the tokens that were used."""

    question: str
    stream: bool
    include_usage: bool


def read_chat_request(raw: bytes, model: str) -> ChatRequest:
    """Reads the body. Raises ``RequestError``; ``model`` is the one that is served."""
    body = read_object(raw)
    asked = body.get("model")
    if asked is None or not isinstance(asked, str):
        raise RequestError('"model" must name a model', param="model")
    if asked != model:
        raise RequestError(
            f"there is no model {asked!r}: this server has {model!r}",
            status=404,
            param="model",
            code="model_not_found",
        )
    _check_form(body)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError('"stream_options" must be an object', param="stream_options")
    stream = _flag(body, "stream")
    return ChatRequest(_question(body), stream, _flag(options, "include_usage"))


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise RequestError("the body is no JSON object")
    return body


def _check_form(body: Mapping[str, Any]) -> None:
    """Refuses what would make another answer than one text."""
    number = body.get("n")
    if number not in (None, 1) or isinstance(number, bool):
        raise RequestError('"n" must be 1: a question has one answer', param="n")
    for name, reason in _REFUSED.items():
        if body.get(name):
            raise RequestError(f'"{name}" is not supported: {reason}', param=name)
    form = body.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        message = '"response_format" must be {"type": "text"}: the answer is the agent\'s own text'
        raise RequestError(message, param="response_format")


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f'"{name}" must be true or false', param=name)
    return bool(value)


def _question(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError('"messages" must be a list of messages', param="messages")
    question: str | None = None
    for place, message in enumerate(messages):
        named = f"messages[{place}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f'"{named}" must be an object with a "role"', param=named)
        if message["role"] == "user":
            question = _text(message.get("content"), f"{named}.content")
    if question is None:
        raise RequestError("no message has the role user: it is the question", param="messages")
    return question


def _text(content: Any, named: str) -> str:
    """A message's text: a text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f'"{named}" must be a text or a list of parts', param=named)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f'"{named}" has a part that is no text: the agent reads text alone', param=named
            )
        texts.append(part["text"])
    return "\n".join(texts)
