"""The trained policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl

from mempo.models.saving import save_policy, whole_weights


class SavedModelCallback(pl.Callback):
    """Writes ``<run_dir>/model/`` at the end of training: it opens with transformers and vLLM.

    LoRA adapters are merged there, and stand in ``<run_dir>/adapter/`` by themselves.
    """

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder = folder
        self.tokenizer = tokenizer

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the weights (every rank takes part) and writes them on rank 0."""
        policy = cast(Any, pl_module).model
        weights = whole_weights(policy, keep=trainer.is_global_zero)
        if trainer.is_global_zero:
            save_policy(policy, weights, self.folder, self.tokenizer)
