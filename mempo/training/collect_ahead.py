"""One piece of work done in the background, on a thread of its own: an epoch collected ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundWork(Generic[T]):
    """Runs ``work`` on a thread, at once; ``work`` is given a function that says when to stop.

    ``prepare`` runs first on that thread: every thread begins with the machine's first GPU.
    """

    def __init__(
        self,
        work: Callable[[Callable[[], bool]], T],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, "ahead", initializer=prepare)
        self._future: Future[T] = self._executor.submit(work, self._stopped.is_set)

    def result(self) -> T:
        """Waits for the work; raises what it raised."""
        try:
            return self._future.result()
        finally:
            self._executor.shutdown()

    def stop(self) -> None:
        """Asks the work to stop and waits until it has. What it gives or raises is dropped."""
        self._stopped.set()
        self._future.exception()
        self._executor.shutdown()
