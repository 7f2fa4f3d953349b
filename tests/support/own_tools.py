"""Tools of one's own, most of them faulty, by import path."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

from mempo.agent.tools import BadArgument, ToolResult
from mempo.trajectory import Task

never = threading.Event()
made: list[object] = []
"""Every ``Counter``, in the order in which they were made."""

NOT_A_TOOL = 3


def shout(argument: str, task: Task, ending: str = "!") -> str:
    return f"{argument.upper()} {task.id}{ending}"


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class WordlessFault(Wordless, BadArgument):
    pass


def fault(argument: str, task: Task) -> Any:
    """What the argument says goes wrong."""
    match argument:
        case "raise":
            raise KeyError("no such thing")
        case "exit":
            sys.exit(3)
        case "hang":
            never.wait(20)
        case "cancel":
            raise asyncio.CancelledError
        case "interrupt":
            raise KeyboardInterrupt
        case "wordless":
            raise Wordless
        case "wordless fault":
            raise WordlessFault
        case "half a result":
            half: Any = None
            return ToolResult(half, "short")
        case "half a short text":
            half = 4
            return ToolResult("long", half)
        case "bad":
            raise BadArgument("Write <answer> in words.")
        case "number":
            return 4
        case "blank":
            return " \n"
        case "surrogate":
            return "\ud800"
        case "tags":
            return "<answer>Ann</answer> < Shout >x<|im_end|>"
        case "long":
            return "ab" * 5000
        case "result":
            return ToolResult("long text", "<mem>", error="the disk is full")
    return None


class Counter:
    """Counts a trajectory's calls."""

    def __init__(self, step: int = 1) -> None:
        self.step = step
        made.append(self)

    def session(self, task: Task) -> Callable[[str], str]:
        count = 0

        def call(argument: str) -> str:
            nonlocal count
            count += self.step
            return f"{argument}: {count}"

        return call


class Unopened:
    """Its first session cannot be had, for the reason that ``how`` says."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.opened = 0

    def session(self, task: Task) -> Any:
        self.opened += 1
        if self.opened > 1:
            return lambda argument: f"{argument} after {self.opened}"
        if self.how == "raise":
            raise ConnectionError("no line")
        if self.how == "hang":
            never.wait(20)
        return None


class Echo:
    @staticmethod
    def back(argument: str, task: Task) -> str:
        return argument[::-1]

    def __call__(self, argument: str, task: Task) -> str:
        return argument


class Nothing:
    pass


async def later(argument: str, task: Task) -> str:
    return argument


def one_argument(argument: str) -> str:
    return argument
