"""The trained policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl


class SavedModelCallback(pl.Callback):
    """Writes ``<run_dir>/model/`` at the end of training: it opens with transformers and vLLM."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder = folder
        self.tokenizer = tokenizer

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the weights (every rank takes part) and writes them on rank 0."""
        module = cast(Any, pl_module)
        weights = {name: value.cpu() for name, value in module.weights()}
        if trainer.is_global_zero:
            module.model.save_pretrained(self.folder, state_dict=weights)
            self.tokenizer.save_pretrained(self.folder)
