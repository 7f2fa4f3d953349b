"""Saves a model from two processes, whole or in shards, with and without adapters.

Run by test_sharded.py under torchrun as ``saving_run.py START_FOLDER OUTPUT_FOLDER``. For each pair
``<strategy>-<adapter>`` it leaves the saved ``model/``, with adapters ``adapter/``, and the
``logits.pt`` of the model that was saved.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, AutoTokenizer

from mempo.config import LoraSettings
from mempo.models.lora import add_adapters
from mempo.models.saving import save_policy, whole_weights
from mempo.models.sharded import shard
from mempo.runtime.processes import finish_collectives_at_exit


def main(start: str, output: str) -> None:
    finish_collectives_at_exit()
    dist.init_process_group("gloo")
    tokenizer = AutoTokenizer.from_pretrained(start)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",))
    for adapter in ("none", "lora"):
        for strategy in ("ddp", "fsdp2"):
            model: Any = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
            if adapter == "lora":
                torch.manual_seed(1)
                model = add_adapters(model, LoraSettings(rank=2))
                with torch.no_grad():
                    for name, parameter in model.named_parameters():
                        if ".lora_B." in name:
                            parameter.normal_(std=0.1)
            if strategy == "fsdp2":
                shard(model, mesh, "float32")
            folder = Path(output) / f"{strategy}-{adapter}"
            model.eval()
            with torch.no_grad():
                logits = model(input_ids=torch.arange(12).reshape(2, 6)).logits
            weights = whole_weights(model, keep=dist.get_rank() == 0)
            if dist.get_rank() == 0:
                folder.mkdir()
                save_policy(model, weights, folder / "model", tokenizer)
                torch.save(logits, folder / "logits.pt")
            dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
