"""Calls that may take only so long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class TimeLimit:
    """``seconds`` that a call may take, as ``setting`` says."""

    seconds: float
    setting: str


def within(limit: TimeLimit, call: Callable[[], T]) -> T:
    """The call's result, its exception, or ``TimeoutError`` when the time is over.

    The call runs on a thread of its own that does not keep the program alive: Python cannot
    interrupt one that hangs.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="mempo-tool", daemon=True)
    thread.start()
    thread.join(limit.seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no result within {limit.setting}={limit.seconds:g} seconds")
    return results[0]
