"""One engine over several processes (``engine.tensor_parallel``), for models too large for one GPU.

Each process of a group holds a part of the engine's weights, and all parts take every step
together. The first process of the group leads: it alone runs the agent loop, and tells the others
the requests that came in since the last step. They submit the same requests in the same order, so
that all parts schedule and sample alike, whatever the tools on the leader's threads do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from mempo.engine.interface import Generation, GenerationEngine, Sampling
from mempo.runtime.errors import ConfigError
from mempo.runtime.gather import is_distributed
from mempo.trajectory import Trajectory

T = TypeVar("T")

Request = tuple[str, list[int], int, int, Sampling]


@dataclass(frozen=True)
class EngineGroup:
    """The processes that share this process's engine.

    ``index`` of ``count`` groups; ``position`` of this process within the group of ``size``; the
    process at position 0 leads. ``handle`` is the process group, None for a group of one.
    """

    index: int = 0
    count: int = 1
    position: int = 0
    size: int = 1
    handle: Any = None

    @property
    def leads(self) -> bool:
        """Whether this process runs the agent loop."""
        return self.position == 0

    def from_leader(self, value: T) -> T:
        """The leader's ``value`` on every process of the group. All of them must call it."""
        if self.size == 1:
            return value
        box = [value if self.leads else None]
        dist.broadcast_object_list(box, src=self.index * self.size, group=self.handle)
        return box[0]  # type: ignore[return-value]

    def own_part(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """What this process trains of what its group collected: every ``size``-th task, whole."""
        tasks = list(dict.fromkeys(trajectory.task.id for trajectory in trajectories))
        own = set(tasks[self.position :: self.size])
        return [trajectory for trajectory in trajectories if trajectory.task.id in own]


def make_engine_group(
    rank: int, world_size: int, tensor_parallel: int, timeout_s: int = 1800
) -> EngineGroup:
    """The group of ``tensor_parallel`` processes with consecutive ranks that ``rank`` is in.

    Every process must call it; ``timeout_s`` is how long one waits for another. Raises
    ``ConfigError`` when the processes do not divide into groups.
    """
    if world_size % tensor_parallel:
        raise ConfigError(
            f"engine.tensor_parallel={tensor_parallel} shares an engine among that many processes, "
            f"and the run has {world_size}: make trainer.devices × trainer.num_nodes a multiple"
        )
    if tensor_parallel == 1:
        return EngineGroup(rank, world_size)
    assert is_distributed()
    handles = [
        dist.new_group(
            list(range(first, first + tensor_parallel)),
            timeout=timedelta(seconds=timeout_s),
            backend="gloo",
        )
        for first in range(0, world_size, tensor_parallel)
    ]
    index, position = divmod(rank, tensor_parallel)
    return EngineGroup(index, len(handles), position, tensor_parallel, handles[index])


class SharedEngine:
    """The group's engine as the agent loop sees it (``GenerationEngine``), on its leader.

    Args:
        engine: this process's part.
        group: the processes that hold the other parts.
    """

    def __init__(self, engine: GenerationEngine, group: EngineGroup) -> None:
        self.max_model_len = engine.max_model_len
        self.group = group
        self._engine = engine
        self._new: list[Request] = []

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        self._new.append((key, prompt_ids, max_tokens, seed, sampling))

    def step(self) -> list[Generation]:
        new, self._new = self._new, []
        self.group.from_leader(("step", new))
        return self._take(new)

    def has_unfinished(self) -> bool:
        return bool(self._new) or self._engine.has_unfinished()

    def abort_all(self) -> None:
        self._new = []
        self.group.from_leader(("abort", []))
        self._engine.abort_all()

    def release(self) -> None:
        """On the leader, after a collection: the others return from ``follow``."""
        self.group.from_leader(("release", []))

    def follow(self) -> None:
        """On the others: takes the leader's steps until it releases them."""
        requests: list[Request]
        while True:
            word, requests = self.group.from_leader(("", []))
            if word == "release":
                return
            if word == "abort":
                self._engine.abort_all()
            else:
                self._take(requests)

    def _take(self, requests: Sequence[Request]) -> list[Generation]:
        for request in requests:
            self._engine.submit(*request)
        return self._engine.step()
