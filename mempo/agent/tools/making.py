"""From the entries of ``tools`` to tools: imported, looked at, made once for a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mempo.agent.protocol import Protocol
from mempo.agent.tools.own import Sessions
from mempo.agent.tools.passages import Access, PassageTool, Search
from mempo.config import ToolConfig
from mempo.runtime.errors import ConfigError
from mempo.runtime.named_objects import named_object
from mempo.trajectory import Task

_CONTRACT: Final = (
    "A tool is a function (argument: str, task: Task) -> str, a class whose instances are called "
    "so, or one with session(task), which gives a function (argument: str) -> str"
)


@dataclass(frozen=True)
class MadeTool:
    """A tool and its entry; ``setting`` is what errors call it, as ``tools.2``."""

    entry: ToolConfig
    setting: str
    tool: PassageTool | Sessions


def protocol_of(tools: Sequence[ToolConfig]) -> Protocol:
    """The tags of a run with these tools."""
    return Protocol(tuple(tool.tag for tool in tools))


def check_tools(tools: Sequence[ToolConfig]) -> None:
    """Imports what the entries name, and makes nothing yet. Raises ``ConfigError`` for what is not
    there, or no tool."""
    for index, entry in enumerate(tools):
        _found(entry, f"tools.{index}")


def make_tools(tools: Sequence[ToolConfig]) -> tuple[MadeTool, ...]:
    """One tool for each entry. Raises ``ConfigError`` as ``check_tools``; what a class raises
    itself comes through."""
    return tuple(
        MadeTool(entry, f"tools.{index}", _made(entry, f"tools.{index}"))
        for index, entry in enumerate(tools)
    )


def _made(entry: ToolConfig, setting: str) -> PassageTool | Sessions:
    found = _found(entry, setting)
    if found is Search or found is Access:
        return found()
    if not isinstance(found, type):
        return _for_every_task(functools.partial(found, **entry.arguments))
    made: Any = found(**entry.arguments)
    session: Sessions | None = getattr(made, "session", None)
    return session if session is not None else _for_every_task(made)


def _for_every_task(call: Callable[[str, Task], object]) -> Sessions:
    return lambda task: lambda argument: call(argument, task)


def _found(entry: ToolConfig, setting: str) -> Any:
    """What the entry names, if it can be a tool."""
    named = f"{setting}._target_={entry._target_}"
    found = named_object(entry._target_, f"{setting}._target_")
    if found is Search or found is Access:
        return found
    if not callable(found):
        raise ConfigError(f"{named} is a {type(found).__name__}. {_CONTRACT}")
    if isinstance(found, type):
        _require(found, f"{named} and its arguments", **entry.arguments)
        method = getattr(found, "session", None)
        given = ("self", "task") if method is not None else ("self", "argument", "task")
        call = inspect.getattr_static(found, "__call__", None)
        method = method or (call if inspect.isfunction(call) else None)
        if method is None:
            raise ConfigError(f"{named} has neither session nor __call__. {_CONTRACT}")
        _require(method, named, *given)
    else:
        method = found
        _require(found, named, "argument", "task", **entry.arguments)
    if inspect.iscoroutinefunction(method):
        raise ConfigError(f"{named} is async: tools run on threads, write a plain function")
    return found


def _require(function: Any, named: str, *arguments: object, **more: object) -> None:
    """Raises ``ConfigError`` where ``function`` cannot be called so."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of some written in C nothing can be told
    try:
        signature.bind(*arguments, **more)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise ConfigError(f"{named} takes {takes}: {error}. {_CONTRACT}") from None
