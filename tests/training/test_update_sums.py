"""The sums of an epoch's micro-batches, in one process and in two (around the method)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from mempo.training.update_sums import UpdateSums


def values(**numbers: float) -> dict[str, Tensor]:
    return {key: torch.tensor(value, dtype=torch.float32) for key, value in numbers.items()}


def test_sums_are_those_of_plain_floats_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(200, generator=generator) * 1e-3
    metric = UpdateSums()
    for one in losses:
        metric.update({"loss": one, "tokens": torch.tensor(3)})
    total = 0.0
    for one in losses:
        total += float(one)
    assert metric.compute() == {"loss": total, "tokens": 600.0}
    assert total != float(losses.sum())  # in float32 it would be another number


def test_what_no_micro_batch_had_is_absent_and_reset_begins_anew() -> None:
    metric = UpdateSums()
    metric.update(values(loss=0.5, mismatch_max=0.25, mismatch_sum=0.75))
    metric.update(values(loss=0.25, mismatch_max=0.125, policy_loss=9.0))
    assert metric.compute() == {"loss": 0.75, "mismatch_max": 0.25, "mismatch_sum": 0.75}
    metric.reset()
    metric.update(values(tokens=2.0))
    assert metric.compute() == {"tokens": 2.0}


def test_nothing_of_it_is_in_a_checkpoint() -> None:
    module = torch.nn.Module()
    module.sums = UpdateSums()
    assert module.state_dict() == {}


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    metric = UpdateSums()
    if rank == 0:
        metric.update(values(loss=0.5, tokens=3.0, mismatch_max=0.25, kl_sum=1.0))
        metric.update(values(loss=0.25, tokens=1.0, mismatch_max=0.5))
    else:
        metric.update(values(loss=1.0, tokens=2.0, mismatch_max=0.125))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(metric.compute()))
    dist.destroy_process_group()


def test_two_processes_with_different_keys_and_micro_batches(tmp_path: Path) -> None:
    spawn(_rank, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "loss": 1.75,
            "tokens": 6.0,
            "mismatch_max": 0.5,
            "kl_sum": 1.0,
        }
