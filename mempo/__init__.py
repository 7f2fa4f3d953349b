"""MemPO: language-model agents that write their own memory, trained with Lightning.

``load_agent`` opens a trained agent (docs/using.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mempo.ask import load_agent

__all__ = ["load_agent"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: ``import mempo`` alone imports nothing."""
    if name == "load_agent":
        from mempo.ask import load_agent

        return load_agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
