"""When failing tools stop a run (specification section 3)."""

from __future__ import annotations

import threading

import pytest

from mempo.agent.error_rate import ErrorRate, ToolFailureError
from mempo.agent.tools import ToolResult

GOOD, OWN, BAD = (
    ToolResult("x", "x"),
    ToolResult("x", "x", failed=True),
    ToolResult("x", "x", error="search: RetrievalError: quota used up"),
)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_knowagent_8_half_of_all_calls_fail_and_the_run_stops() -> None:
    clock = Clock()
    rate = ErrorRate(0.2, clock)
    for number in range(31):
        rate.record(BAD if number % 2 else GOOD)
        clock.now += 1.0
    with pytest.raises(ToolFailureError, match="quota used up") as caught:
        rate.record(BAD)  # 30 seconds after the first failure
    assert "16 of 32 tool calls of the last 60 seconds" in str(caught.value)
    assert "retriever.max_tool_error_rate=0.2" in str(caught.value)


def test_a_server_that_restarts_ends_no_run() -> None:
    """Ten seconds of failures only, after calls at ten a second, and good ones again."""
    clock = Clock()
    rate = ErrorRate(0.2, clock)
    for results, pause in ((GOOD, 0.1), (BAD, 0.1), (GOOD, 0.1)):
        for _ in range(100 if results is BAD else 400):
            rate.record(results)
            clock.now += pause
    assert (rate.calls, rate.errors) == (900, 100)
    rate.check()  # 11 % of the epoch


def test_a_burst_of_failures_after_the_32nd_call_ends_no_run() -> None:
    clock = Clock()
    rate = ErrorRate(0.2, clock)
    for number in range(52):
        rate.record(BAD if 32 <= number < 39 else GOOD)
        clock.now += 0.01
    rate.check()


@pytest.mark.parametrize(("pause", "workers"), [(0.1, 8), (0.5, 1), (5.0, 8), (30.0, 8), (10.0, 1)])
def test_a_dead_server_ends_the_run_within_a_minute(pause: float, workers: int) -> None:
    """Calls fail at once, after retries, or after the longest time-out."""
    clock = Clock()
    rate = ErrorRate(0.2, clock)
    for _ in range(3000):
        rate.record(GOOD)
        clock.now += 0.1
    first = clock.now

    def fail_for_two_minutes() -> None:
        while clock.now < first + 120:
            for _ in range(workers):
                rate.record(BAD)
            clock.now += pause

    with pytest.raises(ToolFailureError, match=r"of the last 60 seconds failed.*quota used up"):
        fail_for_two_minutes()
    assert 30.0 <= clock.now - first <= 60.0


def test_two_outages_an_hour_apart_are_not_one() -> None:
    clock = Clock()
    rate = ErrorRate(0.2, clock)
    for _ in range(2):
        for _ in range(20):
            rate.record(BAD)
        clock.now += 3600.0
    with pytest.raises(ToolFailureError, match="40 of 40 tool calls of this epoch"):
        rate.check()


def test_few_calls_are_judged_at_the_end_of_the_epoch() -> None:
    rate = ErrorRate(0.2)
    for result in (BAD, GOOD, GOOD, GOOD):
        rate.record(result)
    with pytest.raises(ToolFailureError, match="1 of 4"):
        rate.check()
    rate.record(GOOD)
    rate.check()


def test_the_models_own_failures_never_stop_the_run() -> None:
    rate = ErrorRate(0.0)
    for _ in range(100):
        rate.record(OWN)
    rate.check()
    assert (rate.calls, rate.errors) == (100, 0)
    ErrorRate(0.0).check()


def test_error_rate_counts_across_threads() -> None:
    rate = ErrorRate(1.0)

    def record() -> None:
        for _ in range(500):
            rate.record(BAD)

    threads = [threading.Thread(target=record) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (rate.calls, rate.errors) == (4000, 4000)
