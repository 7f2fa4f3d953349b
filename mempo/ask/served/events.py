"""What happens to a question, told to the request that asked it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from starlette.requests import Request

from mempo.ask.served.answering import Answering, Event

ALIVE_SECONDS: Final = 15.0
"""After this much silence a stream says that it goes on, so that nothing between takes it for
dead."""


class Asked:
    """A question on its way. Leaving the ``with`` block, or ``close``, gives it up."""

    def __init__(self, answering: Answering, question: str, context: str | None = None) -> None:
        self._answering = answering
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            with suppress(RuntimeError):  # the loop was closed, and the request with it
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._key = answering.ask(question, context, tell)

    async def next(self) -> Event:
        """The next event."""
        return await self._events.get()

    async def next_or_silence(self) -> Event | None:
        """The next event, or ``None`` after ``ALIVE_SECONDS`` without one."""
        try:
            return await asyncio.wait_for(self._events.get(), ALIVE_SECONDS)
        except TimeoutError:
            return None

    async def next_while_connected(self, request: Request) -> Event | None:
        """The next event, or ``None`` once the client has gone. The body must have been read."""
        event = asyncio.ensure_future(self._events.get())
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({event, gone}, return_when=asyncio.FIRST_COMPLETED)
            return event.result() if event.done() else None
        finally:
            event.cancel()
            gone.cancel()

    def close(self) -> None:
        """Gives the question up, if it has not ended."""
        self._answering.give_up(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
