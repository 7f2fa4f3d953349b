"""Rewards of one's own: functions by import path (docs/rewards.md has their contract)."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Final

from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.named_objects import named_object
from mempo.trajectory import Task

REWARD_KEY: Final = "reward"
"""The key of a function's dict that is its reward."""

RewardFunction = Callable[[str | None, Task], float | Mapping[str, float]]


class RewardFunctionError(Exception):
    """A function of one's own raised; its own exception is the cause."""


def load_function(name: str, setting: str = "reward.metric") -> RewardFunction:
    """The function that an import path names.

    Raises ``ConfigError`` that names ``setting`` when it is not there, cannot be called, or takes
    other arguments than ``(answer, task)``.
    """
    function: RewardFunction = named_object(name, setting)
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else f"a {type(function).__name__}"
        raise ConfigError(f"{setting}={name} is {kind}, and a function (answer, task) is needed")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{setting}={name} is asynchronous: write it as a plain function")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"{setting}={name} cannot be called as {name.rpartition('.')[2]}(answer, task): {error}"
        ) from None
    except ValueError:  # some functions written in C tell no signature
        pass
    return function


def call_function(
    name: str, function: RewardFunction, answer: str | None, task: Task, where: str
) -> dict[str, float]:
    """The metrics of one answer: the reward under ``name``, the other values of a dict under
    ``<name>.<key>``.

    ``where`` names the trajectory in errors. Raises ``RewardFunctionError`` for what the function
    raises, and ``MempoError`` for what it may not return.
    """
    try:
        result = function(answer, task)
    except Exception as error:
        raise RewardFunctionError(
            f"the reward {name} raised {type(error).__name__} for {where}: {error}"
        ) from error
    if not isinstance(result, Mapping):
        return {name: _number(result, name, where)}
    if REWARD_KEY not in result:
        raise MempoError(
            f"the reward {name} gave a dict without the key {REWARD_KEY!r} for {where}: "
            f"{_shown(result)}"
        )
    metrics = {}
    for key, value in result.items():
        if not isinstance(key, str) or not key.strip():
            raise MempoError(
                f"the reward {name} gave the key {key!r} for {where}: a text is needed"
            )
        own = name if key == REWARD_KEY else f"{name}.{key}"
        metrics[own] = _number(value, own, where)
    return metrics


def _number(value: Any, name: str, where: str) -> float:
    if not isinstance(value, numbers.Real):
        raise MempoError(
            f"the reward {name} gave {_shown(value)}, of type {type(value).__name__}, for {where}: "
            "a number is needed"
        )
    number = float(value)
    if not math.isfinite(number):
        raise MempoError(f"the reward {name} gave {number} for {where}: a finite number is needed")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
