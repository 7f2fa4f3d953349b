"""The checks: a command each, the figure that it prints, its limit, and what to do beyond it.

Every check is a process of its own, so that one that fails leaves the others alone. Commands print
a line of JSON last; ``figure`` names one of its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Needs = Literal["nothing", "gpu", "two"]
"""``two``: two devices; without any GPU two processes on the CPU."""

RUN: Final = "{run}"
"""In a command: a new folder, whose ``metrics.jsonl`` has the figure in its last line."""


@dataclass(frozen=True)
class Check:
    """``limit`` is the largest figure that passes, or with ``least`` the smallest; ``None``: the
    figure is told and not judged. ``quick``: part of ``--quick``. ``kills``: a process of the run
    is killed, and the figure is the seconds until all have ended."""

    name: str
    shows: str
    command: Sequence[str]
    figure: str
    limit: float | None
    remedy: str
    needs: Needs = "nothing"
    least: bool = False
    quick: bool = False
    kills: bool = False


def _engine(dtype: str, model: str) -> list[str]:
    return ["gpu_check/engine.py", "--model", model, "--dtype", dtype]


def _debug(*settings: str) -> list[str]:
    quiet = ("logger=none", "callbacks.progress_bars=false", "evaluation.enabled=false")
    return ["train.py", "experiment=debug", *quiet, *settings, f"run_dir={RUN}"]


def _two(trainer: str, *settings: str) -> list[str]:
    return _debug(f"trainer={trainer}", "trainer.devices=2", *settings)


_SYNC = (
    "the engine samples from other weights than are trained, or computes otherwise: send this page "
    "in; a run with engine.dtype=float32 model.dtype=float32 tells whether precision is at fault"
)
_ENDING = "run the command by itself: its output names the process that failed first"

CHECKS: Final = (
    Check(
        "engine float32",
        "the engine's log-probabilities are the trainer's, before and after a sync that its proof "
        "accepts (largest difference, nats)",
        _engine("float32", "tiny"),
        "largest_difference",
        2e-3,
        _SYNC,
        quick=True,
    ),
    Check(
        "engine bfloat16",
        "the same in bfloat16, SmolLM2 (mean difference, nats)",
        _engine("bfloat16", "smollm2"),
        "mean_difference",
        0.1,
        _SYNC,
    ),
    Check(
        "sleep",
        "share of the engine's memory that sleep gives back",
        _engine("bfloat16", "smollm2"),
        "freed_share",
        0.8,
        "something else holds the card, or vLLM was built without sleep: engine.sleep=false, and a "
        "smaller engine.gpu_memory_utilization",
        needs="gpu",
        least=True,
    ),
    Check(
        "tree scoring",
        "tree and padded scoring give the same log-probabilities (largest difference, nats)",
        ["benchmarks/scoring.py", "--rounds", "2", "--tree-only", "--repeats", "1"],
        "max_abs_diff",
        1e-3,
        "train with scoring.method=padded, and send this page in",
        quick=True,
    ),
    Check(
        "update",
        "gradients with shared prompts and lean logits are those of the plain loss (share of the "
        "gradient's norm)",
        ["benchmarks/update.py", "--tokens", "2048", "--prompt", "256", "--repeats", "1"],
        "gradient_difference",
        1e-3,
        "train with optimizer.share_prompts=false, and send this page in",
        quick=True,
    ),
    Check(
        "debug run",
        "the whole road in a minute; how far the engine's log-probabilities are from the trainer's "
        "(mean, nats)",
        _debug("trainer.max_epochs=2"),
        "engine/mismatch_mean",
        2e-3,
        _SYNC,
    ),
    Check(
        "debug run, LoRA",
        "the same with adapters, merged into the engine",
        _debug("trainer.max_epochs=2", "lora=default"),
        "engine/mismatch_mean",
        2e-3,
        _SYNC,
    ),
    Check(
        "two processes, ddp",
        "the same in two processes with an engine each",
        _two("ddp", "trainer.max_epochs=2"),
        "engine/mismatch_mean",
        2e-3,
        _ENDING,
        needs="two",
    ),
    Check(
        "two processes, fsdp2",
        "the same with sharded weights, a checkpoint and a saved model",
        _two("fsdp2", "trainer.max_epochs=2", "trainer.checkpoint_every=1"),
        "engine/mismatch_mean",
        2e-3,
        _ENDING,
        needs="two",
    ),
    Check(
        "one is killed",
        "seconds until the other of two processes has ended as well",
        _two("ddp", "trainer.max_epochs=500"),
        "seconds_until_all_ended",
        60.0,
        "a process waits for ever for one that is gone: end it, and send this page in",
        needs="two",
        kills=True,
    ),
    Check(
        "default run",
        "the README's run: exact match from memory in its last epoch's rollouts, percent",
        ["train.py", "logger=none", "callbacks.progress_bars=false", f"run_dir={RUN}"],
        "reward/exact_match",
        None,
        "",
        needs="gpu",
    ),
    Check(
        "rollout speed",
        "sampled tokens a second with tools, SmolLM2",
        ["benchmarks/rollout.py", "--model", "smollm2", "--dtype", "bfloat16", "--repeats", "1"],
        "loop_tokens_per_second",
        None,
        "",
        needs="gpu",
    ),
    Check(
        "update speed",
        "share of the card's best matrix product that an update reaches, SmolLM2",
        [
            *("benchmarks/update.py", "--model", "smollm2", "--dtype", "bfloat16"),
            *("--tokens", "16384", "--repeats", "2"),
        ],
        "peak_share",
        None,
        "",
        needs="gpu",
    ),
)
