"""How an engine ends in a process that goes on (docs/collectives.md)."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def shut_down(llm: Any, group_is_foreign: bool) -> None:
    """Ends the engine of a ``vllm.LLM``.

    vLLM destroys torch's default process group last, whoever made it. ``group_is_foreign``: it was
    there before the engine, and processes may exchange something after this one's engine has ended,
    or wait for one another: the group stays, and so do vLLM's own, which are parts of it.
    """
    client = llm.llm_engine.engine_core
    if not group_is_foreign:
        client.shutdown()
        return
    core: Any = import_module("vllm.v1.engine.core")
    destroying = core.cleanup_dist_env_and_memory
    core.cleanup_dist_env_and_memory = _leave_groups
    try:
        client.shutdown()
    finally:
        core.cleanup_dist_env_and_memory = destroying


def _leave_groups() -> None:
    """In the place of vLLM's ``cleanup_dist_env_and_memory``; memory is given back elsewhere."""
