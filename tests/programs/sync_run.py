"""Syncs a sharded float32 model into bfloat16 engines of two processes, twice: cast before and
after it is gathered.

Run by test_sharded_sync.py under torchrun as ``sync_run.py MODEL_FOLDER OUTPUT_FOLDER``. Each
process leaves a JSON file with the bytes that were gathered and the engine's digests, for both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from mempo.config import EngineConfig
from mempo.engine.start_arguments import Use
from mempo.engine.vllm_engine import Engine
from mempo.models.lora import named_weights
from mempo.models.sharded import shard
from mempo.runtime.processes import finish_collectives_at_exit


class GatheredBytes(TorchDispatchMode):
    """Counts what this process sends in ``all_gather``."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "all_gather_into_tensor" in str(func):
            self.sent += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


def main(folder: str, output: str) -> None:
    finish_collectives_at_exit()
    dist.init_process_group("gloo")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data_parallel",))
    shard(model, mesh, "bfloat16")
    use = Use("bfloat16", synced=True)
    engine = Engine(folder, EngineConfig(max_num_seqs=4, cpu_kv_cache_gib=0.05), use)
    found = {}
    for name, dtype in (("after", None), ("before", torch.bfloat16)):
        counter = GatheredBytes()

        def stream(counter: GatheredBytes = counter, dtype: Any = dtype) -> Any:
            with counter:
                weights = list(named_weights(model, dtype))
            yield from weights

        engine.sync(stream())
        found[name] = {"sent": counter.sent, "digests": engine._digests()}
    engine.close()
    (Path(output) / f"{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
