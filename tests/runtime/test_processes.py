"""Which process is the first, by each launcher's variables, and on which device a thread computes
(around the method)."""

from __future__ import annotations

import os

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from mempo.runtime import processes
from mempo.runtime.devices import use_device
from mempo.training.collect_ahead import BackgroundWork
from tests.support.programs import run_program

NAMES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "SLURM_PROCID"),
    *("SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID", "SLURM_JOB_NAME"),
    *("JSM_NAMESPACE_RANK", "PMIX_RANK", "PMI_RANK"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        # torchrun, two nodes of two: global rank 2 has local rank 0.
        ({"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1"}, False),
        # torchrun in a task of SLURM: the task's number says nothing.
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "3"}, True),
        # Lightning's own processes, and a second node that was started by hand.
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1"}, False),
        # A shell inside a SLURM job, where Lightning starts the second process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "LOCAL_RANK": "1"}, False),
        # srun: one task a process.
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, True),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}, False),
        ({"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, False),
        # The shell of srun --pty bash, and jobs that somebody called interactive: Lightning does
        # not look at SLURM there. Each task is a run of its own, whose processes it starts.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, True),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, True),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "interactive"}, True),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "SLURM_JOB_NAME": "bash",
                "LOCAL_RANK": "1",
            },
            False,
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "mempo"}, False),
        # A variable that somebody exported, without a job: Lightning does not look at it either.
        ({"SLURM_PROCID": "1"}, True),
        # mpirun of Open MPI, mpiexec of MPICH, jsrun of LSF.
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, False),
        ({"PMI_RANK": "0"}, True),
        ({"PMI_RANK": "1"}, False),
        ({"JSM_NAMESPACE_RANK": "1"}, False),
    ],
)
def test_the_first_process(
    environment: pytest.MonkeyPatch, variables: dict[str, str], first: bool
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert processes.is_first_process() is first


@pytest.mark.parametrize("tasks", [None, "1", "4"])
@pytest.mark.parametrize("name", [None, "bash", "interactive", "mempo", "Bash"])
def test_slurm_is_what_lightning_takes_for_it(
    environment: pytest.MonkeyPatch, tasks: str | None, name: str | None
) -> None:
    """Of four tasks Lightning's ranks are 0 to 3 under SLURM; else every one is rank 0 of its own
    run until Lightning starts further processes."""
    for variable, value in (("SLURM_NTASKS", tasks), ("SLURM_JOB_NAME", name)):
        if value is not None:
            environment.setenv(variable, value)
    environment.setenv("SLURM_NTASKS_PER_NODE", "4")
    assert processes.started_by_slurm() == SLURMEnvironment.detect()
    for rank in range(4):
        environment.setenv("SLURM_PROCID", str(rank))
        chosen = SLURMEnvironment() if SLURMEnvironment.detect() else LightningEnvironment()
        assert processes.is_first_process() == (chosen.global_rank() == 0)


@pytest.mark.parametrize(
    ("variables", "local_rank", "node_rank"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            "1",
            "1",
        ),
        ({"PMI_RANK": "3", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}, "3", "0"),
        # torchrun has said it already.
        (
            {"RANK": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            None,
            None,
        ),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, None, None),  # Lightning reads these itself
    ],
)
def test_lightning_is_told_what_mpi_says(
    environment: pytest.MonkeyPatch,
    variables: dict[str, str],
    local_rank: str | None,
    node_rank: str | None,
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    environment.setattr(os, "environ", dict(os.environ))
    processes.adopt_mpi_launcher()
    assert os.environ.get("LOCAL_RANK") == local_rank
    assert os.environ.get("NODE_RANK") == node_rank


def test_a_thread_takes_the_device_of_its_process() -> None:
    chosen: list[torch.device] = []
    gpu = torch.device("cuda", 3)
    work = BackgroundWork(
        lambda stopped: list(chosen), prepare=lambda: use_device(gpu, chosen.append)
    )
    assert work.result() == [gpu]  # before the work began
    use_device(torch.device("cpu"), chosen.append)
    assert chosen == [gpu]


def test_processes_that_end_right_after_an_exchange_end_well() -> None:
    """Without the wait three in four of these runs abort; three that end well are no chance."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for _ in range(3):
        run_program(*torchrun, "tests/programs/exit_run.py")
