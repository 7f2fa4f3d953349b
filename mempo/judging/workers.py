"""Threads that may be left behind: one that hangs in somebody's function cannot be ended, and must
not keep the program from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_END_SECONDS: Final = 1.0


class Workers:
    """At most ``count`` daemon threads, started as they are needed."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs ``job`` on a thread; what it returns or raises is the future's. Call it from one
        thread."""
        future: Future[T] = Future()
        self._jobs.put((future, job))
        if len(self._threads) < self._count:
            number = len(self._threads)
            thread = threading.Thread(target=self._work, name=f"{self._name}_{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Jobs that have not begun are left out; threads that are idle end, and one that is at work
        ends after its job, which is waited for a second at most."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(_END_SECONDS)
            if thread.is_alive():
                break

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            future, job = taken
            if self._closed or not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - raised where the result is taken
                future.set_exception(error)
            else:
                future.set_result(result)
            del taken, future, job
