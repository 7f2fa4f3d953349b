"""Silences other libraries' start-up chatter. Each line says what it silences and why."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_libraries() -> None:
    """Call it before transformers, vLLM and Lightning are imported."""
    # vLLM logs a page of settings for every engine; its errors still come through.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "1")
    # Tokenizers warns on every fork once it has used threads (the tools run on threads).
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers draws a bar for every weight file, also for a folder of one.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Lightning announces devices and suggests data-loader workers; batches are in memory here.
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    # vLLM touches a deprecated alias of torch.distributed when it is imported.
    warnings.filterwarnings("ignore", message=r".*reduce_op.*", category=FutureWarning)
