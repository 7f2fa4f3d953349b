"""The trained policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from mempo.models.saving import save_policy, whole_weights
from mempo.runtime.checkpoint_files import is_made, note_made
from mempo.runtime.gather import of_first
from mempo.runtime.run_folder import MODEL_FOLDER
from mempo.training.interface import rollout_source, trained_policy


class SavedModelCallback(pl.Callback):
    """Writes ``<run_dir>/model/`` at the end of training: it opens with transformers and vLLM.

    LoRA adapters are merged there, and stand in ``<run_dir>/adapter/`` by themselves.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.folder = Path(run_dir) / MODEL_FOLDER

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A run that was stopped behind its last epoch still owes its model. The first process,
        which writes the folder, says whether."""
        if not of_first(self._is_made()):
            rollout_source(trainer).when_finished.append(
                lambda: self.on_train_end(trainer, pl_module)
            )

    def _is_made(self) -> bool:
        whole = (self.folder / "config.json").is_file()
        return whole and is_made(self.folder.parent, MODEL_FOLDER)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the weights (every rank takes part) and writes them on rank 0."""
        policy = trained_policy(pl_module).model
        weights = whole_weights(policy, keep=trainer.is_global_zero)
        if trainer.is_global_zero:
            tokenizer = rollout_source(trainer).conversation.tokenizer
            save_policy(policy, weights, self.folder, tokenizer)
            note_made(self.folder.parent, MODEL_FOLDER)
