"""When failing tools stop a run (specification section 3)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from mempo.agent.tools import ToolResult
from mempo.runtime.errors import MempoError

WINDOW_SECONDS: Final = 60.0
"""Within an epoch the calls of this much time are judged together."""
OUTAGE_SECONDS: Final = 30.0
"""Failures must last this long: a server that restarts ends no run."""
FEWEST_ERRORS: Final = 4
SHARED_LIMIT: Final = "retriever.max_tool_error_rate"
"""The setting of search and access, and of tools that have none of their own."""


class ToolFailureError(MempoError):
    """Too many tool calls failed for a reason that is not the model's own."""


class ErrorRate:
    """Counts one epoch's tool calls and stops the run when too many fail. Thread safe.

    Only failures that are not the model's own count (``ToolResult.error``). While the epoch goes
    on, ``record`` looks at the calls of the last ``WINDOW_SECONDS`` and stops the run when more
    than ``max_rate`` of them failed and the failures stretch over ``OUTAGE_SECONDS``: a restart of
    a few seconds passes, however many calls fall into it, and a dead server is found within a
    minute. ``check`` judges the epoch as a whole.

    Args:
        max_rate: share of the calls that may fail.
        clock: seconds, ever growing.
        setting: what says ``max_rate``.
        tool: the only tool whose calls are counted (``None``: those of the retriever).
    """

    def __init__(
        self,
        max_rate: float,
        clock: Callable[[], float] = time.monotonic,
        setting: str = SHARED_LIMIT,
        tool: str | None = None,
    ) -> None:
        self._max_rate = max_rate
        self._setting = setting
        self._tool = tool
        self._clock = clock
        self._lock = threading.Lock()
        self._recent_calls: deque[float] = deque()  # when they ended
        self._recent_errors: deque[float] = deque()
        self.calls = 0
        self.errors = 0
        self._last_error = ""

    def record(self, result: ToolResult) -> None:
        """Counts one call. Raises ``ToolFailureError`` in a lasting outage."""
        with self._lock:
            now = self._clock()
            self.calls += 1
            self._recent_calls.append(now)
            if result.error is None:
                return
            self.errors += 1
            self._recent_errors.append(now)
            self._last_error = result.error
            for moments in (self._recent_calls, self._recent_errors):
                while moments[0] < now - WINDOW_SECONDS:
                    moments.popleft()
            errors, calls = len(self._recent_errors), len(self._recent_calls)
            lasts = now - self._recent_errors[0] >= OUTAGE_SECONDS and errors >= FEWEST_ERRORS
            if lasts and errors > self._max_rate * calls:
                raise self._stop(errors, calls, f"the last {WINDOW_SECONDS:g} seconds")

    def check(self) -> None:
        """For the end of an epoch. Raises ``ToolFailureError`` above ``max_rate``."""
        with self._lock:
            if self.errors > self._max_rate * self.calls:
                raise self._stop(self.errors, self.calls, "this epoch")

    def _stop(self, errors: int, calls: int, when: str) -> ToolFailureError:
        of_tool = "tool calls" if self._tool is None else f"calls of the tool {self._tool}"
        repair = "retriever" if self._tool is None else "tool"
        return ToolFailureError(
            f"{errors} of {calls} {of_tool} of {when} failed for a reason that is not the "
            f"model's own, more than {self._setting}={self._max_rate:g} allows. "
            f"Last cause: {self._last_error}. Repair the {repair}, or raise the rate"
        )


class ErrorRates:
    """The error rates of a run's tools: ``shared`` counts search and access together, ``own`` has
    one for each other tool, by its tag. Thread safe."""

    def __init__(self, shared: ErrorRate, own: Mapping[str, ErrorRate] | None = None) -> None:
        self._shared = shared
        self._own = dict(own or {})

    def record(self, action: str, result: ToolResult) -> None:
        """Counts one call of the tool ``action``. Raises ``ToolFailureError``."""
        self._own.get(action, self._shared).record(result)

    def check(self) -> None:
        """For the end of an epoch. Raises ``ToolFailureError``."""
        for rate in (self._shared, *self._own.values()):
            rate.check()
