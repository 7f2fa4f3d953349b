"""The callbacks that the configuration names."""

from __future__ import annotations

from mempo.config import Config
from mempo.runtime.errors import ConfigError
from mempo.runtime.named_objects import named_object
from mempo.training.run import StageCallbacks


def configured_callbacks(config: Config) -> StageCallbacks:
    """What the function ``callbacks.built_by`` makes of the configuration.

    Raises ``ConfigError`` when there is no such function, when it gives something else, and for
    settings of callbacks that cannot be used.
    """
    setting, name = "callbacks.built_by", config.callbacks.built_by
    build = named_object(name, setting)
    found = build(config) if callable(build) else build
    if not isinstance(found, StageCallbacks):
        raise ConfigError(
            f"{setting}={name} gives a {type(found).__name__}: it must be a function that makes "
            "mempo.training.run.StageCallbacks of the configuration"
        )
    return found
