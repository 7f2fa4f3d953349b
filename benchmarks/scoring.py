"""Memory scoring: one forward per sequence against two padded rows per round.

    python benchmarks/scoring.py --model smollm2 --rounds 8

Both sides score the same trajectories with the same model, one after the other in one process, and
are checked equal before anything is timed. Three layouts:

- released: all 2N rows padded to the longest, in batches of eight as they come
- sorted: the padded side's best case, rows sorted by length and batched under a token budget
- tree: ``scoring.method=tree``

Prints one JSON line, last: ``ratio`` and ``ratio_sorted`` (padded over tree, in time),
``tokens_ratio_sorted`` (in tokens computed), ``max_abs_diff`` (log-probabilities).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.batches import group_by_tokens
from mempo.logprobs import token_logprobs
from mempo.tree_scoring import Branch, Tree, tree_logprobs

Row = tuple[tuple[int, ...], int]
"""Token ids and how many of them, at the end, are scored."""


def main() -> None:
    arguments = parse()
    torch.manual_seed(arguments.seed)
    model = load(arguments.model)
    trees = [make_tree(arguments, index) for index in range(arguments.trajectories)]
    rows = [row for tree in trees for row in rows_of(tree)]
    released = [rows[first : first + 8] for first in range(0, len(rows), 8)]
    longest = max(len(ids) for ids, _ in rows)
    by_length = sorted(range(len(rows)), key=lambda index: len(rows[index][0]))
    batches = group_by_tokens(
        [rows[index] for index in by_length], lambda row: len(row[0]), arguments.batch_tokens
    )

    def run_tree() -> list[Tensor]:
        values = tree_logprobs(model, trees, arguments.batch_tokens)
        return [branch for tree in values for branch in tree]

    def run_released() -> list[Tensor]:
        return [v for batch in released for v in padded(model, batch, longest)]

    def run_sorted() -> list[Tensor]:
        found = [v for batch in batches for v in padded(model, batch, 0)]
        result = [torch.empty(0)] * len(rows)
        for place, values in zip(by_length, found, strict=True):
            result[place] = values
        return result

    sides: dict[str, Callable[[], list[Tensor]]] = {
        "tree": run_tree, "sorted": run_sorted, "released": run_released,
    }  # fmt: skip
    results, seconds = {}, {name: [] for name in sides}
    for name, side in sides.items():  # also warms up
        results[name] = side()
    difference = max(
        float((a - b).abs().max())
        for name in ("sorted", "released")
        for a, b in zip(results["tree"], results[name], strict=True)
    )
    assert difference < 1e-4, f"the sides differ by {difference}"
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    sorted_tokens = sum(len(batch) * max(len(ids) for ids, _ in batch) for batch in batches)
    tree_tokens = sum(len(t.ids) + sum(len(b.ids) for b in t.branches) for t in trees)
    for name, value in median.items():
        print(f"{name:9} {value:8.2f} s")
    print(
        json.dumps(
            {
                "model": arguments.model,
                "rounds": arguments.rounds,
                "trajectories": arguments.trajectories,
                "ratio": round(median["released"] / median["tree"], 2),
                "ratio_sorted": round(median["sorted"] / median["tree"], 2),
                "tokens_ratio_sorted": round(sorted_tokens / tree_tokens, 2),
                "max_abs_diff": difference,
                "seconds_tree": round(median["tree"], 3),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
            }
        )
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["tiny", "smollm2"], default="smollm2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("--generated", type=int, default=120, help="sampled tokens a round")
    parser.add_argument("--memory", type=int, default=60, help="of them, memory")
    parser.add_argument("--observed", type=int, default=300, help="tokens of each result")
    parser.add_argument("--answer", type=int, default=20, help="scored tokens")
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(name: str) -> Any:
    if name == "smollm2":
        from mempo.models.smollm2 import load_packaged_smollm2

        return load_packaged_smollm2()[0].eval()
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3}
    config = Qwen2Config(vocab_size=1000, num_attention_heads=2, num_key_value_heads=2, **sizes)
    return Qwen2ForCausalLM(config).eval()


def make_tree(shape: argparse.Namespace, index: int) -> Tree:
    """A trajectory of random tokens: every round after the first is scored."""
    rng = random.Random(shape.seed * 1000 + index)

    def some(count: int) -> list[int]:
        return [rng.randrange(1000) for _ in range(count)]

    ids, branches, answer = some(shape.prompt), [], some(shape.answer)
    for number in range(1, shape.rounds + 1):
        memory = some(shape.memory)
        if number > 1:
            branches.append(Branch(len(ids) - 1, (ids[-1], *answer), 1))
            branches.append(Branch(shape.prompt, (*memory, *answer), len(memory)))
        ids += [*memory, *some(shape.generated - shape.memory), *some(shape.observed)]
    longest = max(branch.prefix for branch in branches)
    return Tree(tuple(ids[:longest]), tuple(branches))


def rows_of(tree: Tree) -> list[Row]:
    return [
        ((*tree.ids[: branch.prefix], *branch.ids), len(branch.ids) - branch.scored_from)
        for branch in tree.branches
    ]


@torch.no_grad()
def padded(model: Any, rows: Sequence[Row], width: int) -> list[Tensor]:
    """Left-padded rows, to ``width`` or their longest; the log-probabilities of their ends."""
    width = max(width, max(len(ids) for ids, _ in rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    attention, wanted = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool)
    for index, (tokens, scored) in enumerate(rows):
        ids[index, width - len(tokens) :] = torch.tensor(tokens)
        attention[index, width - len(tokens) :] = 1
        wanted[index, width - scored :] = True
    logprobs = token_logprobs(model, ids, attention, wanted).logprobs
    return [logprobs[index, width - scored :] for index, (_, scored) in enumerate(rows)]


if __name__ == "__main__":
    main()
