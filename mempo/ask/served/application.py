"""Page and endpoint under one address."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mempo.agent.tools import protocol_of
from mempo.ask.agent import LoadedAgent
from mempo.ask.served.access import Access
from mempo.ask.served.answering import Answering
from mempo.ask.served.ask_page import AskPage
from mempo.ask.served.chat import ChatEndpoint
from mempo.ask.served.chat_reply import Rounds
from mempo.ask.served.faults import RequestError


def make_application(
    agent: LoadedAgent,
    answering: Answering,
    *,
    rounds: Rounds = "hidden",
    token: str | None = None,
    own_names: bool = True,
    origins: Sequence[str] = (),
    example: str | None = None,
) -> Starlette:
    """The ASGI application. ``token``, ``own_names`` and ``origins`` as in ``Access``."""
    page = AskPage(agent, answering, example)
    protocol = protocol_of(agent.config.tools)
    chat = ChatEndpoint(answering, agent.label, rounds, agent.max_model_len, protocol)
    return Starlette(
        routes=[*page.routes, *chat.routes],
        middleware=[
            *([_cross_origin(origins)] if origins else []),
            Middleware(Access, token=token, own_names=own_names, origins=origins),
        ],
        exception_handlers={
            RequestError: _told,
            HTTPException: _http,
            ClientDisconnect: _left,
            Exception: _unexpected,
        },
    )


def _cross_origin(origins: Sequence[str]) -> Middleware:
    """Tells browsers that pages of ``origins`` may read the answers."""
    headers = ["authorization", "content-type"]
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=headers,
    )


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response()


async def _http(request: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return RequestError(message, status=error.status_code).response(error.headers)


async def _left(request: Request, error: Exception) -> Response:
    """The client has gone before its body had come: nobody reads this."""
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Response:
    """uvicorn writes the traceback."""
    return RequestError("the server failed; its terminal says how", status=500).response()
