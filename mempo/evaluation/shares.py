"""An evaluation over several processes: who they are, and which trajectories each makes.

Every process has an engine of its own and takes every n-th of all trajectories, whatever is done
already, so that nothing has to be agreed on. Seeds do not depend on who makes a trajectory. Each
writes its own part of the folder; one of them waits for all, joins the parts and reports.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from mempo.config import Config
from mempo.runtime.errors import ConfigError
from mempo.runtime.processes import started_by_slurm

T = TypeVar("T")

SHARE_VARIABLE: Final = "MEMPO_EVALUATION_SHARE"
"""``index/count``, in the processes that ``evaluate.py`` launches itself."""
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Share:
    """The trajectories of process ``index`` of ``count``; ``local`` counts on its machine.
    ``reports``: it joins what all made, once it has done its own."""

    index: int
    count: int
    local: int
    reports: bool

    def of(self, expected: Sequence[T]) -> list[T]:
        """This process's, of all."""
        return list(expected[self.index :: self.count])


def own_share() -> Share | None:
    """Of this process, as ``evaluate.py``, torchrun or SLURM says in the environment; ``None``
    where it is the only one, or launches the others."""
    found = os.environ
    if SHARE_VARIABLE in found:
        index, count = map(int, found[SHARE_VARIABLE].split("/"))
        return Share(index, count, index, reports=False)
    names = None
    if "RANK" in found and "WORLD_SIZE" in found:
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK"
    elif started_by_slurm():
        names = "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"
    if names is None:
        return None
    index, count, local = (int(found.get(name, "0")) for name in names)
    return None if count == 1 else Share(index, count, local, reports=index == 0)


def processes_to_launch(config: Config, gpus: int) -> int:
    """How many processes with an engine each ``trainer.devices`` asks for, on ``gpus`` GPUs (0: on
    the CPU). Raises ``ConfigError`` for what this call cannot launch."""
    asked, each = config.trainer.devices, config.engine.tensor_parallel
    if config.engine.kind == "openai":
        return 1  # the server has the devices
    if config.trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={config.trainer.num_nodes}: evaluate.py launches processes on its "
            "own machine only: start it with torchrun or srun on all of them, with one run_dir"
        )
    if asked == "auto":
        return max(gpus // each, 1)
    if gpus and asked > gpus:
        raise ConfigError(f"trainer.devices={asked}, and there are {gpus} GPUs: lower it")
    if gpus and asked % each:
        raise ConfigError(
            f"trainer.devices={asked} GPUs cannot be shared among engines of "
            f"engine.tensor_parallel={each}: make the first a multiple of the second"
        )
    return asked // each if gpus else asked


def devices_of(local: int, each: int, gpus: int) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` is in the process ``local`` of a machine: ``each`` of the GPUs
    that this process sees."""
    visible = os.environ.get(_DEVICES)
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    return ",".join(names[local * each : (local + 1) * each])


def take_devices(share: Share, each: int) -> None:
    """In a process of torchrun or SLURM that sees the machine's GPUs: leaves it its own. Before
    CUDA is used."""
    visible = os.environ.get(_DEVICES)
    if SHARE_VARIABLE in os.environ or (visible and len(visible.split(",")) <= each):
        return
    last = (share.local + 1) * each
    os.environ[_DEVICES] = devices_of(share.local, each, last)
