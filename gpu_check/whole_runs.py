"""Checks of whole runs and of several processes, and how fast the phases are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_check.check import RUN, Check, Needs
from gpu_check.one_device import SYNC_REMEDY

_CPU: Final = ("trainer.accelerator=cpu",)
_LARGE_PEAK: Final = ("--matmul-size", "8192")
_ENDING = "run the command by itself: its output names the process that failed first"
_GRADIENT = (
    "processes do not add up what each computes: train on one GPU, or with the strategy that "
    "passes, and send this page in"
)


def _debug(*settings: str) -> list[str]:
    quiet = ("logger=none", "callbacks.progress_bars=false", "evaluation.enabled=false")
    return ["train.py", "experiment=debug", *quiet, *settings, f"run_dir={RUN}"]


def _two(trainer: str, *settings: str) -> list[str]:
    return _debug(f"trainer={trainer}", "trainer.devices=2", *settings)


def _several(strategy: str, devices: int, *more: str) -> list[str]:
    return [
        *("gpu_check/several.py", "--strategy", strategy, "--devices", str(devices)),
        *more,
    ]


def _gradient_and_model(name: str, strategy: str, devices: int, needs: Needs) -> Sequence[Check]:
    """Two figures of one command, with adapters where one process is all."""
    command = _several(strategy, devices, *(["--lora"] if devices == 1 else []))
    what = ", LoRA" if devices == 1 else ""
    return (
        Check(
            f"gradient, {name}{what}",
            "the gradient of uneven shares of an update is that of all rows in one process, by the "
            "plain loss (share of its norm)",
            command,
            "gradient_difference",
            1e-3,
            _GRADIENT,
            needs=needs,
            also=("processes",),
        ),
        Check(
            f"saved model, {name}{what}",
            "what is saved is what was trained, adapters merged (share of its norm)",
            command,
            "saved_difference",
            1e-6,
            "the saved model is not the one that was trained: go on from the checkpoint, and send "
            "this page in",
            needs=needs,
            also=("saved_weights",),
        ),
    )


ROAD: Final = (
    Check(
        "debug run",
        "the whole road in a minute; how far the engine's log-probabilities are from the trainer's "
        "(mean, nats)",
        _debug("trainer.max_epochs=2"),
        "engine/mismatch_mean",
        2e-3,
        SYNC_REMEDY,
    ),
    Check(
        "debug run, LoRA",
        "the same with adapters, merged into the engine",
        _debug("trainer.max_epochs=2", "lora=default"),
        "engine/mismatch_mean",
        2e-3,
        SYNC_REMEDY,
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
)

_WAYS: Final[Sequence[tuple[str, str, int, Needs]]] = (
    ("one process", "auto", 1, "nothing"),
    ("two processes, ddp", "ddp", 2, "two"),
    ("two processes, fsdp2", "fsdp2", 2, "two"),
    ("all GPUs, ddp", "ddp", 0, "more"),
    ("all GPUs, fsdp2", "fsdp2", 0, "more"),
)

PROCESSES: Final = (
    *(check for way in _WAYS for check in _gradient_and_model(*way)),
    Check(
        "two processes, ddp",
        "the debug run in two processes with an engine each",
        _two("ddp", "trainer.max_epochs=2"),
        "engine/mismatch_mean",
        2e-3,
        _ENDING,
        needs="two",
        on_cpu=_CPU,
    ),
    Check(
        "two processes, fsdp2",
        "the same with sharded weights, a checkpoint and a saved model",
        _two("fsdp2", "trainer.max_epochs=2", "trainer.checkpoint_every=1"),
        "engine/mismatch_mean",
        2e-3,
        _ENDING,
        needs="two",
        on_cpu=_CPU,
    ),
    Check(
        "tensor parallel",
        "the same in two processes that share an engine, each with half of every weight",
        _two("ddp", "engine.tensor_parallel=2", "trainer.max_epochs=2"),
        "engine/mismatch_mean",
        2e-3,
        _ENDING,
        needs="two",
        on_cpu=_CPU,
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
        on_cpu=_CPU,
    ),
)

SPEED: Final = (
    Check(
        "rollout speed",
        "sampled tokens a second with tools, SmolLM2; its share of the card's best matrix product "
        "is small, since memory bounds it",
        [
            *("benchmarks/rollout.py", "--model", "smollm2", "--dtype", "bfloat16"),
            *("--repeats", "1", *_LARGE_PEAK),
        ],
        "loop_tokens_per_second",
        None,
        "",
        needs="gpu",
        also=("peak_share", "loop_over_generate"),
    ),
    Check(
        "scoring speed",
        "tokens a second of tree scoring, SmolLM2",
        [
            *("benchmarks/scoring.py", "--model", "smollm2", "--dtype", "bfloat16"),
            *("--tree-only", "--trajectories", "8", "--repeats", "2", *_LARGE_PEAK),
        ],
        "tokens_per_second",
        None,
        "",
        needs="gpu",
        also=("peak_share",),
    ),
    Check(
        "update speed",
        "tokens a second of forward and backward passes, SmolLM2",
        [
            *("benchmarks/update.py", "--model", "smollm2", "--dtype", "bfloat16"),
            *("--tokens", "16384", "--repeats", "2", *_LARGE_PEAK),
        ],
        "tokens_per_second",
        None,
        "",
        needs="gpu",
        also=("peak_share", "matmul_gflops"),
    ),
)
