"""Errors that a person can put right."""

from __future__ import annotations


class MempoError(Exception):
    """A cause that the person who runs the program can put right.

    The message says what is wrong and what to do. The programs end with that message and exit
    code 2, without a traceback (``mempo.runtime.friendly_errors``).
    """


class ConfigError(ValueError):
    """A setting that cannot be used; the message names it and says what to change."""
