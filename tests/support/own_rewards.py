"""Rewards of one's own, good ones and bad ones, by import path ``tests.support.own_rewards.…``."""

from __future__ import annotations

import threading
import time
from typing import Any

from mempo.trajectory import Task

HERE = "tests.support.own_rewards"
THREADS: set[str] = set()
GATE = threading.Event()
SEEN: list[tuple[str | None, str]] = []


def length(answer: str | None, task: Task) -> float:
    """Characters of the answer, in hundredths."""
    THREADS.add(threading.current_thread().name)
    SEEN.append((answer, task.id))
    return len(answer or "") / 100


def parts(answer: str | None, task: Task) -> dict[str, Any]:
    return {"reward": 0.25, "golds": len(task.objectives), "is_right": answer == task.gold}


def gated(answer: str | None, task: Task) -> float:
    """Waits until somebody opens the gate, for every answer but ``fast``."""
    assert answer == "fast" or GATE.wait(10)
    return 1.0


def hangs(answer: str | None, task: Task) -> float:
    time.sleep(5)
    return 1.0


def raises(answer: str | None, task: Task) -> float:
    raise KeyError(f"no such thing: {answer}")


def gives_nan(answer: str | None, task: Task) -> float:
    return float("nan")


def gives_text(answer: str | None, task: Task) -> Any:
    return "1.0"


def gives_nothing(answer: str | None, task: Task) -> Any:
    return None


def gives_no_reward(answer: str | None, task: Task) -> Any:
    return {"score": 1.0}


def gives_infinite_part(answer: str | None, task: Task) -> Any:
    return {"reward": 1.0, "odds": float("inf")}


def takes_one(answer: str | None) -> float:
    return 1.0


async def later(answer: str | None, task: Task) -> float:
    return 1.0


class Thing:
    pass


number = 3
