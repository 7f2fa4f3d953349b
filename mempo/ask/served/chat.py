"""``/v1/models`` and ``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mempo.agent.protocol import Protocol
from mempo.ask.served.answering import (
    Answering,
    Event,
    Failed,
    Finished,
    RoundEnded,
    TooManyQuestionsError,
)
from mempo.ask.served.bodies import body_of
from mempo.ask.served.chat_reply import Reply, Rounds, event
from mempo.ask.served.chat_request import ChatRequest, read_chat_request
from mempo.ask.served.events import Asked
from mempo.ask.served.faults import RequestError, failure, json_response, too_many


class ChatEndpoint:
    """The agent as a model named ``model``; ``rounds`` says where its rounds go, ``protocol`` how
    they are written."""

    def __init__(
        self,
        answering: Answering,
        model: str,
        rounds: Rounds,
        most_tokens: int,
        protocol: Protocol,
    ) -> None:
        self._answering = answering
        self._model = model
        self._rounds: Rounds = rounds
        self._protocol = protocol
        self._card = {
            "id": model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "mempo",
            "max_model_len": most_tokens,
        }

    @property
    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._one_model, methods=["GET"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]

    async def _models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._card]})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._model:
            raise RequestError(
                f"there is no model {name!r}: this server has {self._model!r}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return json_response(self._card)

    async def _chat(self, request: Request) -> Response:
        asks = read_chat_request(await body_of(request), self._model)
        try:
            asked = Asked(self._answering, asks.question)
        except TooManyQuestionsError:
            raise too_many() from None
        if not asks.stream:
            return await self._whole(request, asked)
        first = await asked.next()
        if isinstance(first, Failed):
            raise failure(first)
        return StreamingResponse(
            self._chunks(asked, asks), media_type="text/event-stream", headers=_UNBUFFERED
        )

    async def _whole(self, request: Request, asked: Asked) -> Response:
        with asked:
            while (told := await asked.next_while_connected(request)) is not None:
                if isinstance(told, Failed):
                    raise failure(told)
                if isinstance(told, Finished):
                    reply = Reply(self._model, self._rounds, self._protocol)
                    return json_response(reply.whole(told.trajectory))
        return Response(status_code=499)  # which nobody reads

    async def _chunks(self, asked: Asked, asks: ChatRequest) -> AsyncIterator[bytes]:
        """Server-sent events. What fails after the first is an event of its own, as in vLLM."""
        reply = Reply(self._model, self._rounds, self._protocol)
        with asked:
            yield event(reply.first_chunk())
            told: Event | None = None
            while not isinstance(told, Finished | Failed):
                told = await asked.next_or_silence()
                if told is None:
                    yield b": still at work\n\n"
                elif isinstance(told, RoundEnded):
                    for chunk in reply.round_chunks(told.round):
                        yield event(chunk)
            if isinstance(told, Failed):
                yield event(failure(told).body)
            else:
                for chunk in reply.last_chunks(told.trajectory, asks.include_usage):
                    yield event(chunk)
        yield event("[DONE]")


_UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
