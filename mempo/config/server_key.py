"""A server's key, from the environment variable that a setting names."""

from __future__ import annotations

import os

from mempo.runtime.errors import ConfigError


def key_from_environment(variable: str, setting: str) -> str | None:
    """The key without white space around it (a file's line end), ``None`` where there is none.

    Raises ``ConfigError``, without the key, for one that no header can carry: the request would
    fail, and its client would show it.
    """
    key = os.environ.get(variable, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError(
            f"the environment variable {variable} ({setting}) holds a space, a line end or a "
            "letter beyond ASCII, which no key has: set it to the key alone"
        )
    return key or None
