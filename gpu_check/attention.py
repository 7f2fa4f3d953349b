"""The ways to compute attention that this machine has: do they agree, and which kernel ran.

    python gpu_check/attention.py --dtype bfloat16

The policy's log-probabilities of the same tokens with every implementation that ``model.attention``
names, plain and with prompts computed once, against ``eager`` in float32. Prints one JSON line,
last: the largest of the mean differences in nats, each of them, the kernels that
scaled-dot-product attention took, and 1 where one of them is fused, so that no matrix of scores
stands in memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import DTYPES, MODELS, autocast, device, load_model
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.runtime.library_warnings import quiet_libraries

ROWS: Final = 4
LENGTH: Final = 512
SHARED: Final = 128
KERNELS: Final = "aten::_scaled_dot_product"
WAYS: Final = ("plain", "prompts kept", "prompts in one pass", "packed", "packed behind a prompt")
"""Every row whole; what rows begin with once, as keys and values of a pass before, or in the same
pass, as under gradient checkpointing and fsdp2; rows end to end, whole and behind what they begin
with."""


def main() -> None:
    quiet_libraries()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--dtype", choices=[*DTYPES], default="float32")
    asked = parser.parse_args()
    model, _ = load_model(asked.model)
    print(json.dumps(compare(model, asked.dtype)), flush=True)


def compare(model: Any, dtype: str) -> dict[str, Any]:
    """Every implementation beside the reference, in each way that an update may take."""
    reference = logprobs(model, "eager", "float32", "plain")
    apart = {
        f"{name}, {way}": float((logprobs(model, name, dtype, way) - reference).abs().mean())
        for name in implementations(dtype)
        for way in WAYS
    }
    kernels = kernels_of(model, dtype)
    return {
        "worst_mean_difference": max(apart.values()),
        **apart,
        "kernels": kernels,
        "fused": int(bool(kernels) and not any(name.endswith("_math") for name in kernels)),
    }


def implementations(dtype: str) -> Iterator[str]:
    """What can be computed with here; flash attention's package knows no float32."""
    yield from ("eager", "sdpa")
    if torch.cuda.is_available() and find_spec("flash_attn") and dtype == "bfloat16":
        yield "flash_attention_2"


def logprobs(model: Any, attention: str, dtype: str, way: str) -> Tensor:
    """Of the tokens behind the first of each row's own, [B, T - SHARED - 1], on the CPU."""
    model.set_attn_implementation(attention)
    once = way == "prompts in one pass"
    enable_gradient_checkpointing(model, once)
    model.train(once)
    try:
        with torch.no_grad(), autocast(dtype):
            found = token_logprobs(model, tokens_of(way)).logprobs
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    return found[:, SHARED + 1 :].float().cpu()


def tokens_of(way: str) -> WantedTokens:
    """Rows that begin alike, each shorter than the one before."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1000, (ROWS, LENGTH), generator=generator)  # (B, T)
    ids[:, :SHARED] = ids[0, :SHARED]
    lengths = LENGTH - 50 * torch.arange(ROWS).unsqueeze(1)
    real = torch.arange(LENGTH) < lengths
    wanted = real & (torch.arange(LENGTH) > SHARED)
    where = device()
    shared = 0 if way in ("plain", "packed") else SHARED
    packed = way.startswith("packed")
    return WantedTokens(ids.to(where), real.long().to(where), wanted.to(where), shared, packed)


def kernels_of(model: Any, dtype: str) -> list[str]:
    """The kernels of ``sdpa`` in a plain pass forward and backward, as an update makes it."""
    model.set_attn_implementation("sdpa")
    with profile(activities=[ProfilerActivity.CPU]) as seen, autocast(dtype):
        torch.autograd.backward(token_logprobs(model, tokens_of("plain")).logprobs.sum())
    model.zero_grad(set_to_none=True)
    names = {event.key for event in seen.key_averages()}
    return sorted(
        name.removeprefix("aten::")
        for name in names
        if name.startswith(KERNELS) and not name.endswith("_backward")
    )


if __name__ == "__main__":
    main()
