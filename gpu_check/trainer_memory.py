"""What an update holds at its fullest moment, beside what the dry run plans for it.

    python gpu_check/trainer_memory.py

SmolLM2 with its shipped settings takes two optimizer steps of two micro-batches each; the second
is measured, since moments and gradients are there by then. Prints one JSON line, last: the bytes
that were in use at most, of torch's on a GPU and of the process's above its start on a CPU; the
plan's; and the first over the second.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.common import autocast, device, load_model
from benchmarks.update import make_rows, micro_batches
from benchmarks.update import parse as parse_shape
from mempo.command.cli import compose
from mempo.command.memory_estimate import estimate_memory
from mempo.config import Config
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.runtime.library_warnings import quiet_libraries
from mempo.runtime.phases import bytes_in_use, peak_bytes, reset_peak
from mempo.training.adamw import adamw
from mempo.training.module import MemPOModule

ROWS: Final = 16
"""Of a step, all of one length."""


def main() -> None:
    quiet_libraries()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192, help="of a micro-batch")
    tokens = parser.parse_args().tokens
    trainer = "gpu" if device().type == "cuda" else "cpu"
    settings = [f"optimizer.micro_batch_tokens={tokens}", f"trainer={trainer}"]
    config = compose("train", ["model=smollm2_135m", *settings])
    assert config.model.architecture is not None
    planned = estimate_memory(config, config.model.architecture, 1).training
    taken = taken_by(config)
    share = None if taken is None else taken / planned
    print(json.dumps({"planned": planned, "taken": taken, "share_of_plan": share}), flush=True)


def taken_by(config: Config) -> int | None:
    """Bytes above those of this program at its start, ``None`` where that cannot be told."""
    before = bytes_in_use()
    model, _ = load_model("smollm2")
    enable_gradient_checkpointing(model.train(), config.model.gradient_checkpointing)
    module = MemPOModule(model, config)
    optimizer = adamw(model, device(), None, 1e-6, (0.9, 0.999), 0.0)
    step(module, optimizer, config)
    if before is None or not reset_peak():
        return None
    step(module, optimizer, config)
    peak = peak_bytes()
    return None if peak is None else peak - before


def step(module: MemPOModule, optimizer: Any, config: Config) -> None:
    """Two micro-batches and a step of AdamW."""
    tokens = config.optimizer.micro_batch_tokens
    shape = parse_shape(f"--tokens {2 * tokens} --sequences {ROWS}".split())
    for batch in micro_batches(make_rows(shape), tokens, packed=module.packs_rows):
        with autocast(config.model.dtype):
            loss, _ = module.loss(batch)
        torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
