"""Python objects from every process of a run; one process alone needs no process group."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def is_distributed() -> bool:
    """True inside an initialized process group."""
    return dist.is_available() and dist.is_initialized()


def own_rank() -> int:
    """This process's place in what ``gather_objects`` gives."""
    return dist.get_rank() if is_distributed() else 0


def gather_objects(value: T) -> list[T]:
    """Every process's ``value``, in rank order, on every process. All processes must call it."""
    if not is_distributed():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def of_first(value: T) -> T:
    """The first process's ``value`` on every process: what files say, say, which only it writes and
    a disk of another machine may not have. All processes must call it."""
    return gather_objects(value)[0]


def gather_to_main(value: T) -> list[T] | None:
    """Every process's ``value``, in rank order, on rank 0; ``None`` elsewhere.

    All processes must call it.
    """
    if not is_distributed():
        return [value]
    gathered: list[Any] | None = None
    if dist.get_rank() == 0:
        gathered = [None] * dist.get_world_size()
    dist.gather_object(value, gathered, dst=0)
    return gathered
