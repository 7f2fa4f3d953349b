"""Callbacks of one's own, by name from the configuration (docs/callbacks.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback

from mempo.runtime.errors import ConfigError
from mempo.runtime.named_objects import named_object

_TARGET: Final = "_target_"


def more_callbacks(wanted: Mapping[str, Mapping[str, Any]]) -> list[Callback]:
    """The callbacks of ``callbacks.more``, in their order. Each has a ``_target_``, the class, and
    its arguments, which may have targets of their own.

    Raises ``ConfigError`` that names the setting for a class that is not there, for arguments that
    it does not take, and for what is no callback.
    """
    return [_callback(f"callbacks.more.{name}", node) for name, node in wanted.items()]


def _callback(setting: str, node: Mapping[str, Any]) -> Callback:
    if not isinstance(node.get(_TARGET), str):
        raise ConfigError(f"{setting}.{_TARGET} is missing: name a class, as my_module.MyCallback")
    target = named_object(node[_TARGET], f"{setting}.{_TARGET}")
    if not callable(target):
        raise ConfigError(f"{setting}.{_TARGET}={node[_TARGET]} is no class: name a callback's")
    _check_arguments(setting, target, node)
    try:
        made = instantiate({"_convert_": "all", **node})
    except InstantiationException as error:
        # What the class itself raised keeps its traceback; the rest is Hydra's sentence.
        if error.__cause__ is not None and not isinstance(error.__cause__, ImportError):
            raise error.__cause__ from None
        raise ConfigError(f"{setting}: {error}") from None
    if not isinstance(made, Callback):
        raise ConfigError(
            f"{setting}.{_TARGET}={node[_TARGET]} makes a {type(made).__name__}, and a "
            "lightning.pytorch.Callback is needed"
        )
    return made


def _check_arguments(setting: str, target: Callable[..., Any], node: Mapping[str, Any]) -> None:
    named = {key: value for key, value in node.items() if not key.startswith("_")}
    try:
        parameters = inspect.signature(target)
    except ValueError:  # some classes written in C tell none
        return
    try:
        parameters.bind(*node.get("_args_", ()), **named)
    except TypeError as error:
        takes = ", ".join(parameters.parameters) or "none"
        raise ConfigError(f"{setting}: {error}; {node[_TARGET]} takes {takes}") from None
