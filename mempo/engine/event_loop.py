"""An event loop on a thread of its own, for clients that are asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop:
    """Runs until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="event-loop"
        )
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancels what runs, does the ``last``, and ends the thread. Safe to call twice."""
        if self._loop.is_closed():
            return
        self.start(self._end(last)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last()
        await asyncio.get_running_loop().shutdown_default_executor()
