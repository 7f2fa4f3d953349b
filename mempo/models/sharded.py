"""``trainer=fsdp2``: a model sharded over all processes, and its weights read without a whole copy.

``empty_policy`` has no weights (they are on torch's meta device), ``shard`` splits it, and
``fill`` reads the start from the disk one tensor at a time: process 0 reads, every process keeps
its shard. Main memory grows by one tensor, not by one model for each process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import snapshot_download
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from mempo.config import ShardingConfig
from mempo.runtime.errors import ConfigError

_INDEX = "model.safetensors.index.json"


def shard(model: Any, mesh: Any, dtype: str, sharding: ShardingConfig | None = None) -> None:
    """Splits every layer, embedding and output layer, then what is left, over the mesh's
    ``data_parallel`` dimension; with ``sharding.replicas`` over a part of it, and copied.

    Passes gather one of them at a time, in ``dtype``; gradients are reduced in float32. An
    embedding that is the output layer too is needed at both ends of a pass and stays with the rest.
    Raises ``ConfigError`` for processes that cannot be divided among the copies.
    """
    sharding = sharding or ShardingConfig()
    lower = torch.bfloat16 if dtype == "bfloat16" else None
    settings: dict[str, Any] = {
        "mesh": _copies(mesh["data_parallel"], sharding.replicas),
        "mp_policy": MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32),
    }
    whole: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    for part in (*decoder_layers(whole), *_ends(whole)):
        fully_shard(part, reshard_after_forward=sharding.reshard_after_forward, **settings)
    fully_shard(model, **settings)


def keep_gradients_local(model: Any, local: bool, sharding: ShardingConfig) -> None:
    """Whether the backward passes to come leave gradients as far from their sum as ``sharding``
    lets them, or add up all that was left. Without effect on a model that is not sharded."""
    if not isinstance(model, FSDPModule):
        return
    if sharding.reduce_once:
        model.set_requires_gradient_sync(not local)
    elif sharding.replicas > 1:
        model.set_requires_all_reduce(not local)


def _copies(mesh: Any, replicas: int) -> Any:
    """The processes of ``mesh``, or their [copies, shards]."""
    if replicas == 1:
        return mesh
    if mesh.size() % replicas:
        raise ConfigError(
            f"trainer.sharding.replicas={replicas} does not divide the {mesh.size()} processes: "
            "give one that does, such as trainer.num_nodes"
        )
    shape = (replicas, mesh.size() // replicas)
    return init_device_mesh(mesh.device_type, shape, mesh_dim_names=("replicate", "shard"))


def _ends(model: Any) -> list[Any]:
    """Embedding and output layer, unless they share their weight."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    if None in ends or ends[0].weight is ends[1].weight:
        return []
    return ends


def decoder_layers(model: Any) -> list[Any]:
    """The layers of a causal language model, one after the other, whatever it calls them."""
    count = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ValueError(f"{type(model).__name__} has no list of {count} layers to shard")


def shard_and_fill(
    model: Any,
    mesh: Any,
    dtype: str,
    folder: str,
    device: torch.device,
    sharding: ShardingConfig | None = None,
) -> None:
    """``shard``, and ``fill`` from ``folder`` where the model has no weights yet."""
    shard(model, mesh, dtype, sharding)
    if any(parameter.is_meta for parameter in model.parameters()):
        fill(model, folder, device)


def can_start_empty(folder: str) -> bool:
    """Whether ``empty_policy`` serves this model: not where input and output layer are tied (small
    models, which are loaded whole), nor without weights in safetensors files, nor where the files
    name weights otherwise than the model does (GPT-NeoX)."""
    configuration = AutoConfig.from_pretrained(folder)
    if configuration.tie_word_embeddings:
        return False
    local = Path(folder)
    if local.is_dir() and not any(local.glob("*.safetensors")):
        return False
    build: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = build.from_config(configuration)
    weights = model.state_dict()
    return set(revert_weight_conversion(model, weights)) == set(weights)


def empty_policy(configuration: Any, dtype: torch.dtype, attention: str) -> Any:
    """The model of a configuration with its buffers but without its weights."""
    build: Any = AutoModelForCausalLM
    with init_empty_weights(include_buffers=False):
        return build.from_config(configuration, dtype=dtype, attn_implementation=attention)


def fill(model: Any, folder: str, device: torch.device) -> None:
    """Reads the weights of a sharded ``empty_policy``; every process must call it.

    LoRA adapters start as peft starts them: A uniform as a linear layer's weight, B zero.
    """
    reads = torch.distributed.get_rank() == 0
    with ExitStack() as opened:
        stored = _stored_weights(folder, opened) if reads else {}
        values: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            value: Any = parameter
            whole = torch.empty(value.shape, dtype=value.dtype, device=device)
            if reads:
                _write(whole, name, stored)
            part = distribute_tensor(whole, value.device_mesh, value.placements)
            values[name] = nn.Parameter(part, requires_grad=parameter.requires_grad)
        model.load_state_dict(values, strict=False, assign=True)


def _write(whole: Tensor, name: str, stored: dict[str, Any]) -> None:
    if ".lora_A." in name:
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5))
    elif ".lora_B." in name:
        nn.init.zeros_(whole)
    else:
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        whole.copy_(stored[plain].get_tensor(plain))


def _stored_weights(folder: str, opened: ExitStack) -> dict[str, Any]:
    """By name of the weight, the open file that holds it."""
    local = Path(folder)
    if not local.is_dir():
        local = Path(snapshot_download(folder, allow_patterns=["*.safetensors", "*.json"]))
    return {
        name: file
        for path in _files(local)
        for file in [opened.enter_context(safe_open(str(path), framework="pt"))]
        for name in file.keys()  # noqa: SIM118 - the file is no mapping
    }


def _files(folder: Path) -> Iterator[Path]:
    index = folder / _INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        yield from (folder / name for name in names)
    else:
        yield folder / "model.safetensors"
