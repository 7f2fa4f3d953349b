"""Trains two epochs, once straight through and once broken off in the second and resumed.

Run by test_run.py as ``resume_run.py RUN_DIR CACHE_DIR``; the runs' folders are
``RUN_DIR/straight`` and ``RUN_DIR/resumed``. Prints one JSON line, last: the epochs that each run
collected.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning.pytorch as pl

from mempo.command.cli import compose
from mempo.runtime.library_warnings import quiet_libraries


class Broken(Exception):
    """What breaks the run off."""


class BreakOff(pl.Callback):
    """In the second epoch, after its rollout and scoring, in its update."""

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.current_epoch == 1:
            raise Broken


def main(folder: str, cache_dir: str) -> None:
    quiet_libraries()
    from callbacks.build import run_callbacks
    from mempo.agent.rollout import Rollout
    from mempo.data.tasks import load_task_sets
    from mempo.training.run import reinforce, supervised_start

    collected: defaultdict[str, list[int]] = defaultdict(list)
    collect = Rollout.collect
    run = ""

    def counted(self: Rollout, *arguments: Any, **named: Any) -> Any:
        collected[run].append(named["epoch"])
        return collect(self, *arguments, **named)

    Rollout.collect = counted  # type: ignore[method-assign]
    for run, checkpoint, more in (
        ("straight", False, []),
        ("resumed", False, [BreakOff()]),
        ("resumed", True, []),
    ):
        config = compose(
            "train",
            [
                "experiment=debug",
                "evaluation.enabled=false",
                "trainer.max_epochs=2",
                "trainer.checkpoint_every=1",
                f"ckpt_path={f'{folder}/{run}/checkpoints/last.ckpt' if checkpoint else 'null'}",
                f"cache_dir={cache_dir}",
            ],
            run_dir=f"{folder}/{run}",
        )
        if checkpoint:  # of a run that went on and is given up
            given_up = Path(folder) / run / "checkpoints" / "epoch-00003.ckpt"
            given_up.write_bytes(given_up.with_name("last.ckpt").read_bytes())
        try:
            start, tasks = supervised_start(config), load_task_sets(config)
            reinforce(config, start, tasks, [*run_callbacks(config), *more])
        except Broken:
            assert more
    print(json.dumps(collected))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
