"""Held-out evaluation before and after training, in every context mode."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from mempo.config import Config
from mempo.evaluation.evaluate import evaluate, flat_entry
from mempo.evaluation.tables import print_table, wide_console
from mempo.records.run_results import read_evaluation
from mempo.runtime.checkpoint_files import is_made, note_made
from mempo.runtime.gather import of_first
from mempo.runtime.progress import progress_bar
from mempo.runtime.run_files import write_json
from mempo.runtime.run_folder import EVALUATION_FILE
from mempo.training.interface import rollout_source


class HeldOutEvaluationCallback(pl.Callback):
    """Writes ``<run_dir>/evaluation.json``: ``{"before": {…}, "after": {…}}``.

    A resumed run keeps the ``before`` that the first one wrote.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.path = Path(config.run_dir) / EVALUATION_FILE

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the evaluation to the moment before the first rollout: a sharded model gets a
        checkpoint's weights after this hook. The first process, which writes the file, says which
        evaluations are owed."""
        source = rollout_source(trainer)
        before, after = of_first(self._owed(resumed=trainer.ckpt_path is not None))
        if before:
            source.before_collecting.append(lambda: self._evaluate("before", trainer))
        if after:
            source.when_finished.append(lambda: self._evaluate("after", trainer))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._evaluate("after", trainer)

    def _owed(self, resumed: bool) -> tuple[bool, bool]:
        """Whether ``before``, and with no epoch left ``after``, is still to be made."""
        done = self._results() if resumed else {}
        owes_after = "after" not in done or not is_made(self.path.parent, "after")
        return "before" not in done, owes_after

    def _results(self) -> dict[str, object]:
        """What the run has evaluated already."""
        return dict(read_evaluation(self.path))

    def _evaluate(self, stage: str, trainer: pl.Trainer) -> None:
        source, config = rollout_source(trainer), self.config.evaluation
        source.sync_weights()
        tasks = source.tasks.heldout
        count = len(tasks) if config.tasks is None else min(config.tasks, len(tasks))
        group = source.engine_group
        total = -(-count // group.count) * len(config.contexts)
        shown = self.config.callbacks.progress_bars and trainer.is_global_zero
        with progress_bar(f"evaluation {stage}", total, enabled=shown) as bar:
            entries = evaluate(
                source.rollout,
                tasks,
                config,
                self.config.seed,
                group.index,
                group.count,
                lambda tick: bar.advance(tick.trajectories_done, tick.tokens),
            )
        if not trainer.is_global_zero:
            return
        results = self._results()
        results[stage] = flat_entry(entries)
        write_json(self.path, results)
        if stage == "after":
            note_made(self.path.parent, stage)
        print_table({stage: entries}, wide_console())
