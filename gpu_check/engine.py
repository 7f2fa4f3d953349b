"""One engine beside one trainer on the same device: what each thinks of the same tokens.

    python gpu_check/engine.py --model smollm2 --dtype bfloat16

Prints one JSON line: the largest difference of log-probabilities after a first and after a second
sync (other weights, cached prefixes), the mean difference after the worse of both, whether CUDA
graphs were replayed, and on a GPU the bytes in use before the engine, with it, asleep and awake,
and with it as a share of what a plan gives it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.common import DTYPES, MODELS, autocast, device, save_model
from mempo.config import EngineConfig
from mempo.engine.interface import Sampling
from mempo.engine.start_arguments import Use
from mempo.engine.vllm_engine import Engine
from mempo.runtime.library_warnings import quiet_libraries

PROMPTS = [[7 + (13 * row + 5 * place) % 900 for place in range(40)] for row in range(8)]
TOKENS = 24
SHARE: Final = 0.3
"""Of a GPU's memory, that the engine is given."""


def main() -> None:
    quiet_libraries()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--dtype", choices=[*DTYPES], default="float32")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = save_model(asked.model, folder)
        before = in_use()
        config = EngineConfig(max_num_seqs=8, max_model_len=512, gpu_memory_utilization=SHARE)
        engine = Engine(folder, config, Use(asked.dtype, synced=True), [tokenizer.eos_token_id])
        try:
            print(json.dumps(compare(engine, model, asked.dtype, before)), flush=True)
        finally:
            engine.close()


def compare(engine: Engine, model: Any, dtype: str, before: int) -> dict[str, float | None]:
    """Two syncs with a sleep between them."""
    with_engine = in_use()
    first = differences(engine, model, dtype)
    engine.sleep()
    asleep = in_use()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator) * 0.02 * float(weight.std())
            weight.add_(noise.to(weight.device))
    second = differences(engine, model, dtype)
    taken = with_engine - before
    planned = SHARE * on_card()
    return {
        "largest_difference": float(torch.cat([first, second]).max()),
        "mean_difference": float(max(first.mean(), second.mean())),
        "cuda_graphs": int(replays_graphs(engine)),
        "bytes_before": before,
        "bytes_with_engine": with_engine,
        "bytes_asleep": asleep,
        "bytes_awake": in_use(),
        "freed_share": (with_engine - asleep) / taken if taken > 0 else None,
        "share_of_plan": taken / planned if planned > 0 else None,
    }


def differences(engine: Engine, model: Any, dtype: str) -> torch.Tensor:
    """After a sync: of every sampled token, what engine and trainer think of it, in nats."""
    target = DTYPES[dtype]
    engine.sync((name, value.detach().to(target)) for name, value in model.named_parameters())
    for row, prompt in enumerate(PROMPTS):
        engine.submit(str(row), prompt, TOKENS, row, Sampling())
    found = []
    while engine.has_unfinished():
        for one in engine.step():
            prompt = PROMPTS[int(one.key)]
            ids = torch.tensor([prompt + one.ids], device=device())
            with torch.no_grad(), autocast(dtype):
                logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            said = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
            found.append((said - torch.tensor(one.logprobs)).abs())
    return torch.cat(found)


def replays_graphs(engine: Engine) -> bool:
    """Whether vLLM was built to capture its steps: not on CPUs."""
    settings = engine._llm.llm_engine.vllm_config
    mode = settings.compilation_config.cudagraph_mode
    return not settings.model_config.enforce_eager and getattr(mode, "name", "NONE") != "NONE"


def on_card() -> int:
    """Bytes of the whole card; 0 without one."""
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else 0


def in_use() -> int:
    """Bytes of the card that anybody uses; 0 without one."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


if __name__ == "__main__":
    main()
