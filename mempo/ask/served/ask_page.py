"""The page, and what its script asks for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mempo.ask.agent import LoadedAgent
from mempo.ask.served.answering import Answering, Event, Failed, Finished, TooManyQuestionsError
from mempo.ask.served.bodies import body_of
from mempo.ask.served.chat_request import read_object
from mempo.ask.served.document import Document
from mempo.ask.served.events import Asked
from mempo.ask.served.faults import RequestError, failure, json_response, too_many
from mempo.ask.served.views import QuestionView


class AskPage:
    """The page of one agent; ``example`` is a question that it can be asked."""

    def __init__(self, agent: LoadedAgent, answering: Answering, example: str | None) -> None:
        self._agent = agent
        self._answering = answering
        self._document = Document.made()
        self._about = {
            "name": agent.label,
            "model": agent.name,
            "contexts": list(agent.config.evaluation.known_contexts),
            "context": agent.context,
            "example": example,
        }

    @property
    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/", self._page, methods=["GET"]),
            Route("/page/about", self._tell_about, methods=["GET"]),
            Route("/page/ask", self._ask, methods=["POST"]),
        ]

    async def _page(self, request: Request) -> Response:
        return Response(self._document.text, media_type="text/html", headers=self._document.headers)

    async def _tell_about(self, request: Request) -> Response:
        return json_response(self._about)

    async def _ask(self, request: Request) -> Response:
        """The events of one question, a JSON object a line."""
        body = read_object(await body_of(request))
        question, context = (_text(body, name) for name in ("question", "context"))
        try:
            asked = Asked(self._answering, question, context)
        except TooManyQuestionsError:
            raise too_many() from None
        first = await asked.next()
        if isinstance(first, Failed):
            raise failure(first)
        return StreamingResponse(
            self._lines(asked, first, self._agent.has_memory(context)),
            media_type="application/x-ndjson",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _lines(self, asked: Asked, first: Event, memory: bool) -> AsyncIterator[bytes]:
        view = QuestionView(self._agent.config, memory)
        with asked:
            told: Event | None = first
            yield _line(view.event(first))
            while not isinstance(told, Finished | Failed):
                told = await asked.next_or_silence()
                yield b"\n" if told is None else _line(view.event(told))


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise RequestError(f'"{name}" must be a text', param=name)
    return value


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
