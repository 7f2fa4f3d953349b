"""Errors in the protocol's JSON shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from mempo.ask.served.answering import Cause, Failed


class RequestError(Exception):
    """A request that cannot be answered: status, a sentence, and what names it to programs."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The protocol's object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The whole answer."""
        return json_response(self.body, self.status, headers)


_STATUS: Final = {
    Cause.QUESTION: (400, None),
    Cause.TOO_LONG: (400, "context_length_exceeded"),
    Cause.TOOLS: (503, "tool_calls_failed"),
    Cause.ENGINE: (500, "engine_failed"),
    Cause.STOPPED: (503, "stopping"),
}


def failure(event: Failed) -> RequestError:
    """A question's failure as the protocol says it."""
    status, code = _STATUS[event.cause]
    param = "messages" if status == 400 else None
    return RequestError(event.message, status=status, param=param, code=code)


def too_many() -> RequestError:
    """There are more questions than the server takes."""
    message = "too many questions are on their way: ask again later"
    return RequestError(message, status=429, code="rate_limit_exceeded")


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """In ASCII, which holds lone surrogates too."""
    return Response(json.dumps(value), status, headers, media_type="application/json")
