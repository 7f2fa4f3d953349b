"""Takes three optimizer steps on given trajectories on two CPU processes, an epoch each.

Saves the first step's gradient, the norms of all and the weights after the last. Run by
test_gradient_truth.py as ``gradient_run.py FOLDER STRATEGY VARIANT [SETTING ...]``. The
trajectories are those of that test; the first process gets seven of them and the second five.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning as L
import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from mempo.command.cli import compose
from mempo.config import Config
from mempo.learning.batches import Batch
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.runtime.library_warnings import quiet_libraries
from mempo.runtime.processes import finish_collectives_at_exit
from mempo.training.module import MemPOModule
from mempo.trajectory import Trajectory
from tests.learning.test_gradient_truth import (
    STEPS,
    UNTIED,
    VARIANTS,
    epoch_dataset,
    make_case,
    plan_counts,
    weighted_rows,
)

BUDGET = 40
FIRST = 7


class GivenTrajectories(L.LightningDataModule):
    def __init__(self, trajectories: list[Trajectory], config: Config) -> None:
        super().__init__()
        self.rows = weighted_rows(trajectories, config)
        self.parts = [set(map(id, trajectories[:FIRST])), set(map(id, trajectories[FIRST:]))]
        self.config = config

    def train_dataloader(self) -> DataLoader[Batch]:
        parts = [[r for r in self.rows if id(r.trajectory) in part] for part in self.parts]
        assert self.trainer is not None
        module = self.trainer.lightning_module
        assert isinstance(module, MemPOModule)
        share, packed = module.shares_prompts, module.packs_rows
        count = max(plan_counts(part, BUDGET, share, packed) for part in parts)
        rows = parts[self.trainer.global_rank]
        dataset = epoch_dataset(rows, count, BUDGET, self.config, share, packed)
        return DataLoader(dataset, batch_size=None)


class SavedGradient(MemPOModule):
    folder: Path

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.norms: list[float] = []
        self.shares = self.packs = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        self.shares, self.packs = self.shares or batch.shared > 0, batch.packed
        super().training_step(batch, batch_idx)

    def _step(self) -> None:
        if not self.norms:
            gradient = {name: whole(p.grad) for name, p in self.model.named_parameters()}
            torch.save(gradient, self.folder / f"gradient-{self.global_rank}.pt")
        super()._step()
        self.norms += self._grad_norms[-1:]

    def on_train_end(self) -> None:
        weights = {name: whole(p.detach()) for name, p in self.model.named_parameters()}
        after = {
            "norms": self.norms,
            "weights": weights,
            "shares": self.shares,
            "packs": self.packs,
            "parts": sum(isinstance(part, FSDPModule) for part in self.model.modules()),
        }
        torch.save(after, self.folder / f"after-{self.global_rank}.pt")


def whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def main(folder: str, strategy: str, variant: str, *settings: str) -> None:
    from mempo.training.run import trainer_arguments

    quiet_libraries()
    finish_collectives_at_exit()
    config = compose(
        "train",
        [
            *VARIANTS[variant],
            f"trainer={strategy}",
            "trainer.accelerator=cpu",
            "trainer.devices=2",
            *(one for one in settings if one != UNTIED),
        ],
    )
    model, reference, groups = make_case(config, tied=UNTIED not in settings)
    enable_gradient_checkpointing(model, config.model.gradient_checkpointing)
    module = SavedGradient(model, config, reference if config.loss.kl_coefficient > 0 else None)
    module.folder = Path(folder)
    trainer = L.Trainer(
        **trainer_arguments(config),
        max_epochs=STEPS,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
    )
    data = GivenTrajectories([member for group in groups for member in group], config)
    trainer.fit(module, datamodule=data)


if __name__ == "__main__":
    main(*sys.argv[1:])
