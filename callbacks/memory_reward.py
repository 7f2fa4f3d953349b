"""Scores the epoch's trajectories and writes their advantages (DESIGN: the way data flows)."""

from __future__ import annotations

from collections.abc import Sequence

import lightning.pytorch as pl
import torch

from mempo.config import Config
from mempo.learning.advantages import assign_advantages
from mempo.learning.old_logprobs import write_old_logprobs
from mempo.learning.scoring import MemoryScorer
from mempo.runtime.gather import gather_objects
from mempo.runtime.progress import progress_bar
from mempo.training.interface import rollout_source, trained_policy
from mempo.trajectory import Trajectory


class MemoryRewardCallback(pl.Callback):
    """Batched teacher scoring and group normalization, after the rollout and before the update.

    The policy itself is the teacher, as it is before the update, without gradient.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._scorer: MemoryScorer | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        tokenizer = rollout_source(trainer).conversation.tokenizer
        self._scorer = MemoryScorer(tokenizer, self.config.scoring, _most_of_all_ranks)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes memory rewards and advantages into the data module's trajectories."""
        source, model = rollout_source(trainer), trained_policy(pl_module).model
        with source.phases.measured("scoring"):
            model.eval()
            with torch.no_grad(), trainer.precision_plugin.forward_context():
                self._score(trainer, model, source.trajectories)
            assign_advantages(source.trajectories, self.config.outcome, self.config.memory)

    def _score(
        self, trainer: pl.Trainer, model: torch.nn.Module, trajectories: Sequence[Trajectory]
    ) -> None:
        several = self.config.optimizer.updates_per_epoch > 1
        old_temperature = self.config.rollout.temperature if several else None
        if self.config.scoring.enabled:
            assert self._scorer is not None
            rows = self._scorer.row_count(trajectories)
            shown = self.config.callbacks.progress_bars and trainer.is_global_zero
            with progress_bar(f"scoring {trainer.current_epoch}", rows, enabled=shown) as bar:
                self._scorer.score(model, trajectories, bar.advance, old_temperature)
        elif old_temperature is not None:
            write_old_logprobs(
                model,
                trajectories,
                old_temperature,
                self.config.optimizer.micro_batch_tokens,
                _most_of_all_ranks,
            )


def _most_of_all_ranks(own: int) -> int:
    return max(gather_objects(own))
