"""Two micro-batches of an update on tensors without storage, followed by torch's memory trackers.

``measured.py`` runs this as a program of its own, which reads each ``Subject`` as JSON and prints
bytes as JSON: the ``fake`` process group and ``FakeTensorMode`` must not reach the process that
plans. The policy is built, sharded, checkpointed and given adapters by the functions that training
uses; collectives do nothing, and every tensor has the size that it has in a run.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed import fake_pg
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    Qwen2Config,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mempo.command.planning.subject import Subject
from mempo.learning import logprobs
from mempo.learning.logprobs import Targets, statistics_at
from mempo.models import sharded as sharding
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.models.loading import attention_for
from mempo.models.lora import add_adapters
from mempo.models.sharded import keep_gradients_local, shard
from mempo.training.adamw import adamw

_DEVICE = torch.device("cpu")
"""Sizes are the same as on a GPU, for which this build of torch may not be made."""

_TOTAL = "Total"

_WITHOUT_MASK = "sdpa_without_mask"
"""A name that transformers knows no mask for gets none: it takes fake tensors for those of a
compiler, and would lay a mask of T · T over them that no run has."""

AttentionInterface.register(_WITHOUT_MASK, sdpa_attention_forward)


class _WholeTracker(MemTracker):  # type: ignore[no-untyped-call]
    """Without the peaks of single modules, which take most of the time."""

    def _track_module_params_and_buffers(
        self, module: nn.Module, install_grad_hooks: bool = True
    ) -> tuple[int, int]:
        """Frozen parameters take no hooks on their gradients."""
        trained = all(parameter.requires_grad for parameter in module.parameters())
        return super()._track_module_params_and_buffers(module, install_grad_hooks and trained)

    def _update_peak_stats(self, peak_state: Any) -> None:
        for device, now in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < now[_TOTAL]:
                self._peak_mem[device] = now[_TOTAL]
                self._peak_mem_snap[device] = deepcopy(now)


class _ShardedTracker(_WholeTracker, FSDPMemTracker):  # type: ignore[no-untyped-call]
    """The same for ``fully_shard``."""


def track(subject: Subject) -> dict[str, int]:
    """Bytes by category, and their ``Total``, at the fullest moment of a micro-batch that adds to
    the gradients of one before it."""
    # Chunks of logits as on the device that is planned for, and meshes of true numbers.
    chunks: Any = logprobs
    chunks.logit_elements = lambda device: subject.logit_elements
    meshes: Any = sharding
    meshes.init_device_mesh = _true_mesh
    torch.distributed.init_process_group(
        "fake", store=fake_pg.FakeStore(), rank=0, world_size=subject.processes
    )
    mesh = init_device_mesh("cpu", (subject.processes,), mesh_dim_names=("data_parallel",))
    sharded = subject.strategy == "fsdp2"
    with FakeTensorMode():
        model = _policy(subject, frozen=subject.lora is not None, mesh=mesh if sharded else None)
        more = _beside(subject, model, mesh if sharded else None)
        model.train()
        optimizer = adamw(model, _DEVICE, False, 1e-6, (0.9, 0.999), 0.0)
        ids = torch.zeros(1, subject.tokens, dtype=torch.long)
        keep_gradients_local(model, True, subject.sharding)
        _pass(model, ids, subject)
        _create_states(optimizer)
        tracker: Any
        if sharded:
            tracker = _ShardedTracker(model, optimizer)
            tracker.track_inputs((ids,))
        else:
            tracker = _WholeTracker()
            tracker.track_external(model, optimizer, ids)
        with tracker:
            if subject.sharding.reduce_once or subject.sharding.replicas > 1:
                _pass(model, ids, subject)
                tracker.reset_mod_stats()
            keep_gradients_local(model, False, subject.sharding)
            _pass(model, ids, subject)
        peak = tracker.get_tracker_snapshot("peak")[_DEVICE]
    found = {getattr(kind, "value", kind): int(size) for kind, size in peak.items()}
    return {**found, **more, _TOTAL: found[_TOTAL] + sum(more.values())}


def _policy(subject: Subject, frozen: bool, mesh: Any) -> Any:
    """As ``load_policy`` builds it, without weights to read; sharded over ``mesh``."""
    lower = frozen and subject.dtype == "bfloat16"
    build: Any = AutoModelForCausalLM
    with torch.device("meta"):
        configuration = _configuration(subject)
        model = build.from_config(
            configuration,
            dtype=torch.bfloat16 if lower else torch.float32,
            attn_implementation=attention_for(_attention(subject), configuration),
        )
        if model.config._attn_implementation == "sdpa":
            model.config._attn_implementation = _WITHOUT_MASK
        enable_gradient_checkpointing(model, subject.gradient_checkpointing)
        if subject.lora is not None:
            model = add_adapters(model, subject.lora)
    _materialize(model)
    if mesh is not None:
        shard(model, mesh, subject.dtype, subject.sharding)
    return model


def _attention(subject: Subject) -> str:
    """Flash attention keeps what the kernels behind ``sdpa`` keep, and may not be installed."""
    return "sdpa" if subject.attention == "flash_attention_2" else subject.attention


def _configuration(subject: Subject) -> Any:
    sizes = subject.architecture
    if sizes is None:
        return AutoConfig.from_pretrained(str(subject.path))
    # Qwen2 has biases on queries, keys and values, Llama none.
    kind: Any = Qwen2Config if sizes.attention_bias else LlamaConfig
    names = vars(sizes).keys() - {"attention_bias"}
    return kind(**{name: getattr(sizes, name) for name in names})


def _true_mesh(*arguments: Any, **named: Any) -> Any:
    with unset_fake_temporarily():
        return init_device_mesh(*arguments, **named)


def _materialize(model: nn.Module) -> None:
    """Parameters and buffers as tensors of the mode that is active, those that are one stay one."""
    made: dict[Tensor, Any] = {}
    for module in model.modules():
        for name, own in list(module._parameters.items()):
            if own is not None:
                if own not in made:
                    value = torch.empty(own.shape, dtype=own.dtype)
                    made[own] = nn.Parameter(value, requires_grad=own.requires_grad)
                module._parameters[name] = made[own]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _beside(subject: Subject, model: nn.Module, mesh: Any) -> dict[str, int]:
    """What stands beside the update all the time.

    The frozen reference of the KL term; and what DDP sums gradients in, where autograd's own come
    only with a step's last micro-batch (DDP itself needs tensors with storage).
    """
    found = {}
    if subject.reference:
        reference = _policy(subject, frozen=True, mesh=mesh)
        found["Reference"] = sum(_bytes(one) for one in reference.parameters())
    if subject.strategy == "ddp" and subject.processes > 1:
        found["DDP buckets"] = sum(_bytes(p) for p in model.parameters() if p.requires_grad)
    return found


def _bytes(parameter: Any) -> int:
    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return int(own.numel() * own.element_size())


def _pass(model: Any, ids: Tensor, subject: Subject) -> None:
    """Log-probabilities of every token, and their gradient."""
    places = torch.arange(ids.shape[1] - 1)
    targets = Targets(torch.zeros_like(places), places, ids[0, 1:])
    autocast: AbstractContextManager[Any] = nullcontext()
    if subject.dtype == "bfloat16" and subject.strategy != "fsdp2":
        autocast = torch.autocast("cpu", torch.bfloat16)
    with autocast:
        values = statistics_at(
            model,
            lambda: model(input_ids=ids, use_cache=False),
            targets,
            entropy=subject.entropy,
        )
        torch.autograd.backward(values[:, 0].sum())


def _create_states(optimizer: torch.optim.Optimizer) -> None:
    """AdamW's two moments; a step itself is counted with whole tensors under fake mode."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def main() -> None:
    """Reads a list of ``Subject`` from standard input and prints what ``track`` gives for each."""
    found = []
    for subject in TypeAdapter(list[Subject]).validate_json(sys.stdin.read()):
        found.append(track(subject))
        torch.distributed.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
