"""Checks of the machine, of the engine beside the trainer, and of what is computed with weights."""

from __future__ import annotations

from typing import Final

from gpu_check.check import Check

SYNC_REMEDY: Final = (
    "the engine samples from other weights than are trained, or computes otherwise: send this page "
    "in; a run with engine.dtype=float32 model.dtype=float32 tells whether precision is at fault"
)


def _engine(dtype: str, model: str) -> list[str]:
    return ["gpu_check/engine.py", "--model", model, "--dtype", dtype]


MACHINE: Final = (
    Check(
        "devices and versions",
        "problems of packages, driver and cards: other versions than were tested, a GPU that torch "
        "does not see or that somebody uses, a wrong matrix product",
        ["gpu_check/installed.py"],
        "problems",
        0.0,
        "each line above says what to do",
        quick=True,
    ),
)

ENGINE: Final = (
    Check(
        "engine float32",
        "the engine's log-probabilities are the trainer's, before and after a sync that its proof "
        "accepts (largest difference, nats)",
        _engine("float32", "tiny"),
        "largest_difference",
        2e-3,
        SYNC_REMEDY,
        quick=True,
    ),
    Check(
        "engine bfloat16",
        "the same in bfloat16, SmolLM2 (mean difference, nats)",
        _engine("bfloat16", "smollm2"),
        "mean_difference",
        0.1,
        SYNC_REMEDY,
        also=("largest_difference",),
    ),
    Check(
        "CUDA graphs",
        "1 where the engine of the check before replayed CUDA graphs, so that it also says that "
        "they see the synced weights",
        _engine("bfloat16", "smollm2"),
        "cuda_graphs",
        1.0,
        "sampling is right without them and slower: send this page in",
        needs="gpu",
        least=True,
    ),
    Check(
        "engine memory",
        "what the engine took, as a share of what a plan gives it (engine.gpu_memory_utilization "
        "of the card)",
        _engine("bfloat16", "smollm2"),
        "share_of_plan",
        1.1,
        "dry_run=true counts too little for the engine here: lower engine.gpu_memory_utilization "
        "by the difference, and send this page in",
        needs="gpu",
        also=("bytes_before", "bytes_with_engine"),
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
        also=("bytes_asleep", "bytes_awake"),
    ),
)

_PACKED: Final = (
    *("benchmarks/update.py", "--sequences", "8", "--spread", "0.8"),
    *("--pack", "true", "--micro-batch-tokens", "2048", "--repeats", "1"),
)

UPDATE: Final = (
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
        "packed update",
        "the same for rows of different lengths end to end, without padding",
        [*_PACKED, "--tokens", "4096", "--prompt", "64"],
        "gradient_difference",
        1e-3,
        "train with optimizer.pack_rows=false, and send this page in",
        quick=True,
    ),
    Check(
        "packed update bfloat16",
        "the same in bfloat16, SmolLM2: on GPUs by the kernel for rows of any lengths",
        [*_PACKED, "--tokens", "4096", "--model", "smollm2", "--dtype", "bfloat16"],
        "gradient_difference",
        0.05,
        "train with optimizer.pack_rows=false, and send this page in",
        also=("time_ratio", "memory_ratio"),
    ),
    Check(
        "trainer memory",
        "what an update held at its fullest moment, as a share of what the dry run plans",
        ["gpu_check/trainer_memory.py"],
        "share_of_plan",
        1.1,
        "dry_run=true counts too little for the trainer here: lower optimizer.micro_batch_tokens, "
        "and send this page in",
        needs="gpu",
        also=("planned", "taken"),
    ),
    Check(
        "attention",
        "log-probabilities by every attention that is installed, of padded and packed rows, are "
        "those of eager attention (worst mean difference, nats)",
        ["gpu_check/attention.py"],
        "worst_mean_difference",
        1e-3,
        "the first line of the command's figures that is large names the way: avoid it with "
        "model.attention=…, optimizer.pack_rows=false or optimizer.share_prompts=false, and send "
        "this page in",
        quick=True,
    ),
    Check(
        "attention bfloat16",
        "the same in bfloat16, against eager attention in float32, SmolLM2",
        ["gpu_check/attention.py", "--dtype", "bfloat16", "--model", "smollm2"],
        "worst_mean_difference",
        0.1,
        "as for attention in float32",
    ),
    Check(
        "attention kernel",
        "1 where scaled-dot-product attention took a fused kernel in an update",
        ["gpu_check/attention.py", "--dtype", "bfloat16", "--model", "smollm2"],
        "fused",
        1.0,
        "matrices of scores fill the memory: a newer torch, or model.attention=flash_attention_2 "
        "with the package flash-attn",
        least=True,
        also=("kernels",),
    ),
)
