"""A trained agent that answers questions: from Python, and in the terminal (docs/using.md)."""

from __future__ import annotations

from mempo.ask.loading import load_agent

__all__ = ["load_agent"]
