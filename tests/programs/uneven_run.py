"""Trains through all of ``tests/support/uneven_cases.py``, alone or as one of two processes.

Run by test_uneven_shares.py, alone or under torchrun, as ``uneven_run.py STARTS OUTPUT [NUMBERS]``.
Each case leaves its run in ``OUTPUT/<number>``, with what was synced in ``synced-<rank>.json``. A
case that takes longer than it may is a hang: every thread's stack is printed, and the program ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning as L
import lightning.pytorch as pl

from mempo.command.cli import compose
from mempo.runtime.library_warnings import quiet_libraries
from mempo.runtime.processes import finish_collectives_at_exit
from tests.support.uneven_cases import CASES, ShownEngine, overrides, task_sets

SECONDS_A_CASE = 90


class StopAtOnce(pl.Callback):
    """Ends training after the first epoch, as a callback of one's own may."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = True


def main(starts: str, output: str, numbers: str = "") -> None:
    quiet_libraries()
    finish_collectives_at_exit()
    from callbacks.build import run_callbacks
    from mempo.agent.conversation import Conversation
    from mempo.models.loading import load_tokenizer
    from mempo.runtime.checkpoint_files import last_checkpoint
    from mempo.training import datamodule
    from mempo.training.run import reinforce

    rank, alone = int(os.environ.get("RANK", "0")), "RANK" not in os.environ
    conversation = Conversation(load_tokenizer(f"{starts}/tied"), "Answer.")

    def train(number: int, folder: Path, *settings: str, more: list[Any]) -> None:
        case = CASES[number]
        config = compose("train", [*overrides(case, alone=alone), *settings], run_dir=folder)
        engine = ShownEngine(conversation)
        setattr(datamodule, "Engine", lambda *_: engine)  # noqa: B010 - it is imported there
        L.seed_everything(config.seed, verbose=False)
        callbacks = [*run_callbacks(config), *more]
        reinforce(config, f"{starts}/{case['start']}", task_sets(), callbacks)
        folder.mkdir(exist_ok=True)
        (folder / f"synced-{rank}.json").write_text(json.dumps(engine.synced))

    for number in map(int, numbers.split(",")) if numbers else range(len(CASES)):
        faulthandler.dump_traceback_later(SECONDS_A_CASE, exit=True)
        goes_on, folder = CASES[number]["goes_on"], Path(output) / str(number)
        print(f"case {number}: {CASES[number]}", file=sys.stderr, flush=True)
        if goes_on == "resumed" and not alone:
            first = folder.with_name(f"{number}-first")
            train(number, first, "trainer.max_epochs=1", more=[])
            train(number, folder, f"ckpt_path={last_checkpoint(str(first))}", more=[])
        else:
            train(number, folder, more=[StopAtOnce()] if goes_on == "stopped" else [])
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
