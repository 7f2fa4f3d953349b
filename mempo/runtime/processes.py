"""The processes of a run: which one is the first, and none outlives the one that launched it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

_LOOK_EVERY_SECONDS = 2.0
_LAST_COLLECTIVES_SECONDS = 0.3


_LAUNCHED_RANKS = (
    "LOCAL_RANK",  # Lightning, for processes that it starts itself
    "NODE_RANK",
    "GROUP_RANK",
    "JSM_NAMESPACE_RANK",  # LSF's jsrun
    "OMPI_COMM_WORLD_RANK",  # Open MPI
    "PMIX_RANK",
    "PMI_RANK",  # MPICH, Intel MPI
)
"""Where launchers name a process's rank, of the run or of a part of it. Only the first process has
0 in all that are set: a variable that a surrounding shell left is 0 too."""

_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Rank, rank on the node, and processes on the node, as MPI's launchers name them."""


def is_first_process() -> bool:
    """True in the process of rank 0, whoever launched it, also before Lightning has set processes
    up. torchrun and Kubeflow name the rank in ``RANK``, which decides alone: they may themselves
    run in a job of another launcher."""
    if (rank := os.environ.get("RANK")) is not None:
        return rank == "0"
    slurm = ("SLURM_PROCID",) if started_by_slurm() else ()
    return all(os.environ.get(name, "0") == "0" for name in (*_LAUNCHED_RANKS, *slurm))


def started_by_slurm() -> bool:
    """Whether this process is one task of a run that ``srun`` started, as Lightning decides it
    (``SLURMEnvironment.detect``). In a job that is called ``bash``, as those of ``srun --pty bash``
    are, or ``interactive``, each task is a run of its own, and Lightning starts its processes."""
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return "SLURM_NTASKS" in os.environ and not interactive


def adopt_mpi_launcher() -> None:
    """Tells Lightning, in the words that it reads, which process this is where ``mpirun`` or
    ``mpiexec`` started it. Without ``mpi4py`` Lightning does not see them, and every process would
    take itself for the whole run."""
    if "LOCAL_RANK" in os.environ or "RANK" in os.environ:
        return
    for rank, local_rank, local_size in _MPI:
        if rank in os.environ and local_rank in os.environ:
            size = max(int(os.environ.get(local_size, "1")), 1)
            os.environ["LOCAL_RANK"] = os.environ[local_rank]
            os.environ["NODE_RANK"] = str(int(os.environ[rank]) // size)
            return


def end_with_parent(launched: bool | None = None) -> None:
    """In a process that another one launched for a further rank: ends it when that one is gone.

    A rank whose launcher was killed would otherwise work on until its next exchange with it.
    Lightning looks after the other direction: the launcher ends all when a further rank ends.
    ``launched`` says whether there is one, where ``LOCAL_RANK`` does not.
    """
    if launched is None:
        launched = os.environ.get("LOCAL_RANK", "0") != "0"
    if not launched:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def finish_collectives_at_exit() -> None:
    """Lets gloo's threads finish before the interpreter goes, once in every process of a run.

    A thread of gloo that drops the last tensor of an exchange needs the interpreter for it; one
    that asks when the interpreter has begun to go aborts the process ("terminate called without an
    active exception"), whose work was complete. Two processes that end right after an exchange did
    so in half of the trials, with and without a barrier or ``destroy_process_group``. The threads
    need no more than a moment in which the main one waits.
    """
    atexit.unregister(_wait_for_collectives)
    atexit.register(_wait_for_collectives)


def _wait_for_collectives() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        time.sleep(_LAST_COLLECTIVES_SECONDS)
