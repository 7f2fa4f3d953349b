"""The trained policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from peft import PeftModel


class SavedModelCallback(pl.Callback):
    """Writes ``<run_dir>/model/`` at the end of training: it opens with transformers and vLLM.

    LoRA adapters are merged there, and stand in ``<run_dir>/adapter/`` by themselves.
    """

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder = folder
        self.tokenizer = tokenizer

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gathers the weights (every rank takes part) and writes them on rank 0."""
        module = cast(Any, pl_module)
        weights = {name: value.cpu() for name, value in module.weights()}
        if trainer.is_global_zero:
            model = module.model
            if isinstance(model, PeftModel):
                model.save_pretrained(str(self.folder.parent / "adapter"))
                model = model.get_base_model()
            model.save_pretrained(self.folder, state_dict=weights)
            self.tokenizer.save_pretrained(self.folder)
