"""What an engine refuses."""

from __future__ import annotations

from mempo.runtime.errors import MempoError


class EngineError(MempoError):
    """The engine could not start, or refused something it must do."""
