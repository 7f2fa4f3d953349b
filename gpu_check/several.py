"""An update of several processes beside the same rows in one, and the model that they save.

    python gpu_check/several.py --strategy fsdp2 --devices 2 --lora

Each process has its share of the rows, the first one more than the others. Lightning's trainer and
the project's own module make the step; its gradient is held against the plain loss of all rows,
which one process computes alone. The learning rate is next to nothing, so that the saved model must
be the one that was given, with adapters merged. Prints one JSON line, last, from the first process.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lightning as L
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.common import device, load_model
from benchmarks.update import make_rows, micro_batches, plain_loss
from benchmarks.update import parse as parse_shape
from mempo.command.cli import compose
from mempo.config import Config
from mempo.learning.batches import Batch
from mempo.learning.micro_batches import plan_micro_batches
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.models.lora import add_adapters
from mempo.models.saving import save_policy, whole_weights
from mempo.runtime.library_warnings import quiet_libraries
from mempo.runtime.processes import finish_collectives_at_exit, is_first_process
from mempo.training.epoch_dataset import EpochDataset
from mempo.training.module import MemPOModule
from mempo.training.run import trainer_arguments

BUDGET: Final = 1024
_EACH: Final = 256
"""Tokens of a row; 64 of them begin all rows."""


def main() -> None:
    quiet_libraries()
    finish_collectives_at_exit()
    asked = parse()
    config = compose("train", settings(asked))
    model, tokenizer = load_model("tiny")
    given = {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
    if config.model.lora is not None:
        model = with_adapters(model, config)
    expected, adapted = alone(model, config, asked), merged(model, given)
    enable_gradient_checkpointing(model.cpu(), config.model.gradient_checkpointing)
    module = Observed(model.cpu(), config)
    data = Rows(asked)
    trainer = L.Trainer(
        **trainer_arguments(config), max_epochs=1, logger=False, enable_checkpointing=False
    )
    trainer.fit(module, datamodule=data)
    weights = whole_weights(module.model, keep=trainer.is_global_zero)
    if trainer.is_global_zero:
        with tempfile.TemporaryDirectory() as folder:
            save_policy(module.model, weights, Path(folder) / "model", tokenizer)
            saved = load_file(Path(folder) / "model" / "model.safetensors")
        figures = {
            "processes": trainer.world_size,
            "gradient_difference": share_apart(module.gradient, expected),
            "saved_difference": share_apart(saved, {n: adapted[n] for n in saved}),
            "saved_weights": len(saved),
        }
        print(json.dumps(figures), flush=True)
    trainer.strategy.barrier()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategy", choices=["auto", "ddp", "fsdp2"], default="ddp")
    parser.add_argument("--devices", type=int, default=0, help="0: all GPUs, or two processes")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="also where there is a GPU")
    asked = parser.parse_args()
    gpus = 0 if asked.cpu else torch.cuda.device_count()
    asked.devices = asked.devices or gpus or 2
    asked.accelerator = "gpu" if gpus else "cpu"
    return asked


def settings(asked: argparse.Namespace) -> list[str]:
    names = {"auto": "gpu" if asked.accelerator == "gpu" else "cpu"}
    return [
        f"trainer={names.get(asked.strategy, asked.strategy)}",
        *(f"trainer.accelerator={asked.accelerator}", f"trainer.devices={asked.devices}"),
        *("model.dtype=float32", "optimizer.learning_rate=1e-30", "optimizer.max_grad_norm=1e9"),
        f"optimizer.micro_batch_tokens={BUDGET}",
        *(["lora=default", "model.lora.rank=4"] if asked.lora else []),
    ]


def with_adapters(model: Any, config: Config) -> Any:
    """Adapters whose product is not 0, the same in every process."""
    assert config.model.lora is not None
    torch.manual_seed(0)
    model = add_adapters(model, config.model.lora)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".lora_" in name:
                value.copy_(0.02 * torch.randn(value.shape, generator=generator))
    return model


def merged(model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What must be saved: W + alpha / rank · B A, read off the adapters themselves."""
    found = dict(given)
    for name, down in model.named_parameters():
        if ".lora_A." in name:
            layer = model.get_submodule(name.partition(".lora_A.")[0])
            up = model.get_parameter(name.replace(".lora_A.", ".lora_B."))
            scale = layer.lora_alpha["default"] / layer.r["default"]
            plain = name.partition(".lora_A.")[0].removeprefix("base_model.model.") + ".weight"
            found[plain] = given[plain] + scale * (up @ down).detach().cpu()
    return found


def make(asked: argparse.Namespace) -> list[Any]:
    """As many rows as give the first process one more than the others."""
    count = 2 * asked.devices + 1
    shape = f"--tokens {_EACH * count} --sequences {count} --prompt 64"
    return make_rows(parse_shape(shape.split()))


def alone(model: Any, config: Config, asked: argparse.Namespace) -> dict[str, Tensor]:
    """The gradient of all rows by the plain loss; nothing where this is not the first process."""
    if not is_first_process():
        return {}
    module = MemPOModule(deepcopy(model).to(device()), config)
    for batch in micro_batches(make(asked), BUDGET):
        torch.autograd.backward(plain_loss(module, batch))
    return {n: p.grad.cpu() for n, p in module.model.named_parameters() if p.grad is not None}


class Rows(L.LightningDataModule):
    """Each process's share of the rows, in as many micro-batches as the fullest has."""

    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__()
        self._rows, self._devices = make(asked), asked.devices

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        share, packed = module.shares_prompts, module.packs_rows
        parts = [self._rows[rank :: self._devices] for rank in range(self._devices)]
        count = max(len(plan_micro_batches(part, BUDGET, share, packed)) for part in parts)
        own = parts[self.trainer.global_rank]
        dataset = EpochDataset([own], [count], BUDGET, True, [share], packed)
        return DataLoader(dataset, batch_size=None)


class Observed(MemPOModule):
    """Keeps the gradient of its step."""

    gradient: dict[str, Tensor]

    def _step(self) -> None:
        self.gradient = {
            name: _whole(value.grad)
            for name, value in self.model.named_parameters()
            if value.grad is not None
        }
        super()._step()


def _whole(value: Any) -> Tensor:
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole.cpu().clone()


def share_apart(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """How far all of ``found`` is from ``expected``, as a share of its norm. Infinite where they
    are not of the same names."""
    if found.keys() != expected.keys() or not found:
        return math.inf
    apart = sum(float((found[n] - expected[n]).double().square().sum()) for n in expected)
    return math.sqrt(apart / sum(float(expected[n].double().square().sum()) for n in expected))


if __name__ == "__main__":
    main()
