"""Trains on two CPU processes and saves each rank's weights after every epoch.

Run by test_several_processes.py as ``two_process_run.py RUN_DIR CACHE_DIR``. Three tasks over two
ranks, so one rank has twice the other's rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning.pytorch as pl
import torch

from mempo.command.cli import compose
from mempo.runtime.library_warnings import quiet_libraries
from mempo.runtime.processes import finish_collectives_at_exit
from mempo.training.module import MemPOModule


class SaveWeights(pl.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, MemPOModule)
        name = f"weights-{trainer.current_epoch}-{trainer.global_rank}.pt"
        torch.save(dict(pl_module.model.state_dict()), self.folder / name)


def main(run_dir: str, cache_dir: str) -> None:
    quiet_libraries()
    finish_collectives_at_exit()
    from callbacks.build import run_callbacks
    from mempo.data.tasks import load_task_sets
    from mempo.training.run import reinforce, supervised_start

    config = compose(
        "train",
        [
            "experiment=debug",
            "trainer=ddp",
            "trainer.accelerator=cpu",
            "trainer.devices=2",
            "rollout.tasks_per_epoch=3",
            "optimizer.micro_batch_tokens=512",
            f"cache_dir={cache_dir}",
        ],
        run_dir=run_dir,
    )
    callbacks = [*run_callbacks(config), SaveWeights(Path(run_dir))]
    start = supervised_start(config)
    reinforce(config, start, load_task_sets(config), callbacks)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
