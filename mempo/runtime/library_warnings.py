"""How other libraries are imported: quickly, and without their start-up chatter. Each line says
what it silences and why."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Within the block nothing is searched for garbage: what is imported stays, and looking through
    it again and again is a sixth of the time that torch, Lightning, transformers and vLLM take."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def quiet_libraries() -> None:
    """Call it before transformers and vLLM are imported; errors still come through."""
    # Tokenizers warns on every fork once it has used threads (the tools run on threads).
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # vLLM logs a page of settings for every engine.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("vllm").setLevel(logging.ERROR)
    # vLLM's CPU kernels announce, on every start, the memory that they bind to.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # wandb announces versions and folders before and after every run, below our own last line.
    os.environ.setdefault("WANDB_SILENT", "true")
    # vLLM touches a deprecated alias of torch.distributed when it is imported.
    warnings.filterwarnings("ignore", message=r".*reduce_op.*", category=FutureWarning)

    with quick_imports():
        import lightning.pytorch  # sets its own log level when it is imported
        from transformers.utils import logging as transformers_logging

    # Lightning announces devices and suggests data-loader workers; batches are in memory here.
    logging.getLogger(lightning.pytorch.__name__).setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r".*does not have many workers.*")
    # A finished run that goes on has no batches left, only what it still owes.
    warnings.filterwarnings("ignore", message=r".*Total length of .* across ranks is zero.*")
    # Lightning calls a deprecated function of torch's tree utilities.
    warnings.filterwarnings("ignore", message=r".*LeafSpec.*")
    # Models come in eval mode; the modules switch them to training themselves.
    warnings.filterwarnings("ignore", message=r".*in eval mode at the start of training.*")
    # Batches are moved by the modules, on purpose.
    warnings.filterwarnings("ignore", message=r".*overridden `transfer_batch_to_device`.*")
    # transformers draws a bar for every weight file, also for a folder of one.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def log_no_requests() -> None:
    """httpx and its successor log a line for every request, which would be thousands an epoch,
    unless somebody set its level."""
    for name in ("httpx", "httpcore", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
