"""Work done ahead on a thread (around section 4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from mempo.training.collect_ahead import BackgroundWork


def test_result_waits_for_the_work() -> None:
    go = threading.Event()

    def work(stopped: Callable[[], bool]) -> int:
        go.wait(10)
        return 7

    ahead = BackgroundWork(work)
    go.set()
    assert ahead.result() == 7


def test_what_the_work_raises_comes_with_the_result() -> None:
    def work(stopped: Callable[[], bool]) -> int:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        BackgroundWork(work).result()


def test_stop_waits_until_the_work_has_stopped() -> None:
    ended: list[str] = []

    def work(stopped: Callable[[], bool]) -> None:
        while not stopped():
            time.sleep(0.001)
        ended.append("stopped")
        raise RuntimeError("dropped")

    BackgroundWork(work).stop()
    assert ended == ["stopped"]
