"""Trains on two CPU processes, one of which raises an exception at the end of its first epoch.

Run by test_several_processes.py as ``raise_run.py RUN_DIR CACHE_DIR RANK``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mempo.command.cli import compose
from mempo.runtime.library_warnings import quiet_libraries


def main(run_dir: str, cache_dir: str, rank: str) -> None:
    quiet_libraries()
    from callbacks.build import stage_callbacks
    from callbacks.epoch_line import EpochLineCallback
    from mempo.training.run import train

    print_line = EpochLineCallback.on_train_epoch_end

    def broken(self: Any, trainer: Any, module: Any) -> None:
        print_line(self, trainer, module)
        if trainer.global_rank == int(rank):
            raise RuntimeError(f"broken on rank {rank}")

    EpochLineCallback.on_train_epoch_end = broken  # type: ignore[method-assign, assignment]
    config = compose(
        "train",
        [
            "experiment=debug",
            "trainer=ddp",
            "trainer.accelerator=cpu",
            "trainer.devices=2",
            "evaluation.enabled=false",
            "logger=none",
            f"cache_dir={cache_dir}",
        ],
        run_dir=run_dir,
    )
    train(config, stage_callbacks(config))


if __name__ == "__main__":
    main(*sys.argv[1:])
