"""Starts a model empty on two processes, shards it, reads its weights, and saves what it then is.

Run by test_sharded.py under torchrun as ``sharded_loading_run.py MODEL_FOLDER OUTPUT_FOLDER LORA``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig

from mempo.config import LoraSettings, ShardingConfig
from mempo.models.lora import add_adapters
from mempo.models.saving import whole_weights
from mempo.models.sharded import can_start_empty, empty_policy, fill, shard
from mempo.runtime.errors import ConfigError
from mempo.runtime.processes import finish_collectives_at_exit


def main(folder: str, output: str, lora: str) -> None:
    finish_collectives_at_exit()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert can_start_empty(folder)
    model = empty_policy(AutoConfig.from_pretrained(folder), torch.float32, "sdpa")
    if lora == "lora":
        model = add_adapters(model, LoraSettings(rank=2))
    assert all(parameter.is_meta for parameter in model.parameters())
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",))
    if lora == "copies":
        with pytest.raises(ConfigError, match=r"replicas=3 does not divide the 2 processes"):
            shard(model, mesh, "float32", ShardingConfig(replicas=3))
    replicas = 2 if lora == "copies" else 1
    shard(model, mesh, "float32", ShardingConfig(replicas=replicas))
    fill(model, folder, torch.device("cpu"))
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert held == total if replicas == 2 else held < 0.6 * total, (held, total)
    logits = model(input_ids=torch.arange(12).reshape(2, 6)).logits
    loss = logits.square().mean()
    torch.autograd.backward(loss)
    trained = sorted(n for n, p in model.named_parameters() if p.grad is not None)
    weights = whole_weights(model, keep=rank == 1).merged
    assert bool(weights) == (rank == 1)
    torch.save(
        {"logits": logits.detach(), "weights": weights, "trained": trained},
        Path(output) / f"{rank}.pt",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
