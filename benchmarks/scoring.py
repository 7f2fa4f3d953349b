"""Memory scoring: one forward per sequence against two padded rows per round.

    python benchmarks/scoring.py --model smollm2 --rounds 8

The sides score the same trajectories with the same model, in turns:

- released: all 2N rows padded to the longest, in batches of eight as they come
- sorted: the padded side's best case, rows sorted by length and batched under a token budget
- tree: ``scoring.method=tree``
- own: the pass over the trajectories' own tokens that π_old takes where memories are scored padded
- tree_own: the tree pass that gives π_old as well
- doubled (``--doubled``): the tree at twice the rounds

All compute the output layer at scored positions only. Before anything is timed, ``sorted`` is
compared with ``tree`` on rows from all over and ``released`` on its first batch; after it,
everything. The released layout takes minutes, so it runs no more often than ``--repeats`` and that
one batch.
``--tree-only`` times the tree alone and compares it with ``sorted`` on one trajectory.

Prints one JSON line, last: ``ratio`` and ``ratio_sorted`` (padded over tree, in time),
``tokens_ratio_sorted`` (in tokens computed), ``max_abs_diff`` (log-probabilities),
``peak_memory_ratio`` (above the model, released over tree), ``ratio_with_old`` (released and own
over tree_own, in time), ``doubled_time_ratio`` (doubled over tree, in time), ``tokens_per_second``
and ``peak_share`` of the tree (tokens that it computes; the model's operations in a second as a
share of the best matrix product).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks.common import (
    MAX_DIFFERENCE,
    argument_parser,
    autocast,
    device,
    forward_flops,
    load_model,
    matmul_peak,
    medians,
    print_result,
    print_seconds,
    ratio_or_none,
    time_sides,
    with_peak_memory,
)
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.micro_batches import group_by_tokens
from mempo.learning.tree_scoring import Branch, Tree, tree_logprobs

Row = tuple[tuple[int, ...], int]
"""Token ids and how many of them, at the end, are scored."""

RELEASED_BATCH = 8
SAMPLED_ROWS = 12
"""Rows that are compared before the timing, about; after it, all are."""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    model, _ = load_model(arguments.model)
    sides = Sides(model, arguments)
    doubled = Sides(model, arguments, arguments.rounds * 2) if arguments.doubled else None
    model(input_ids=torch.zeros(1, 16, dtype=torch.long, device=device()))  # warms up

    tree, tree_peak = with_peak_memory(sides.tree)
    released_peak = None
    checks = Checks(MAX_DIFFERENCE[arguments.dtype])
    if arguments.tree_only:
        count = len(sides.trees[0].branches)
        checks.compare(tree[:count], sides.sorted_rows(sides.rows[:count]))
    else:
        some = range(0, len(sides.rows), max(len(sides.rows) // SAMPLED_ROWS, 1))
        checks.compare([tree[i] for i in some], sides.sorted_rows([sides.rows[i] for i in some]))
        batch = sides.rows[:RELEASED_BATCH]
        first, released_peak = with_peak_memory(lambda: sides.padded(batch, sides.longest))
        checks.compare(tree[: len(batch)], first)
        checks.compare(sides.tree_own(), tree + sides.own())

    timed: dict[str, Callable[[], list[Tensor]]] = {"tree": sides.tree}
    if doubled is not None:
        timed["doubled"] = doubled.tree
    if not arguments.tree_only:
        timed["tree_own"] = sides.tree_own
        timed["own"] = sides.own
        timed["sorted"] = lambda: sides.sorted_rows(sides.rows)
        timed["released"] = sides.released
    seconds, results = time_sides(timed, arguments.repeats)
    if not arguments.tree_only:
        checks.compare(results["tree"], results["sorted"])
        checks.compare(results["tree"], results["released"])
        checks.compare(results["tree_own"], results["tree"] + results["own"])

    print_seconds(seconds)
    median = medians(seconds)
    padded = not arguments.tree_only
    print_result(
        "scoring",
        arguments,
        {
            "ratio": median["released"] / median["tree"] if padded else None,
            "ratio_sorted": median["sorted"] / median["tree"] if padded else None,
            "tokens_ratio_sorted": sides.sorted_tokens() / sides.tree_tokens(),
            "max_abs_diff": checks.largest,
            "peak_memory_ratio": ratio_or_none(released_peak, tree_peak),
            "ratio_with_old": (median["released"] + median["own"]) / median["tree_own"]
            if padded
            else None,
            "doubled_time_ratio": median["doubled"] / median["tree"] if doubled else None,
            "tokens_per_second": sides.tree_tokens() / median["tree"],
            "peak_share": sides.tree_flops()
            / median["tree"]
            / matmul_peak(arguments.dtype, arguments.matmul_size),
            "tree_peak_mib": None if tree_peak is None else tree_peak / 2**20,
            **{f"seconds_{name}": value for name, value in median.items()},
        },
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, model="tiny")
    parser.set_defaults(repeats=1)
    parser.add_argument("--rounds", type=int, default=8, help="rounds of a trajectory")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("--generated", type=int, default=120, help="sampled tokens a round")
    parser.add_argument("--memory", type=int, default=60, help="of them, memory")
    parser.add_argument("--observed", type=int, default=300, help="tokens of each result")
    parser.add_argument("--answer", type=int, default=20, help="scored tokens")
    parser.add_argument("--trajectories", type=int, default=2, help="scored together")
    parser.add_argument("--batch-tokens", type=int, default=8192, help="of a pass")
    parser.add_argument("--matmul-size", type=int, default=2048, help="of the peak's matrices")
    parser.add_argument("--doubled", action="store_true", help="time twice the rounds as well")
    parser.add_argument("--tree-only", action="store_true", help="do not time the padded sides")
    return parser.parse_args(argv)


class Checks:
    """Compares results and keeps the largest difference."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.largest = 0.0

    def compare(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
        for a, b in zip(one, other, strict=True):
            difference = float((a - b).abs().max())
            if not difference < self.limit:  # also where it is NaN
                raise SystemExit(f"the sides differ by {difference}, more than {self.limit}")
            self.largest = max(self.largest, difference)


@dataclass(frozen=True)
class _Sampled:
    """A trajectory's tokens, which of them the policy sampled, and its tree."""

    ids: tuple[int, ...]
    policy: tuple[int, ...]
    tree: Tree


class Sides:
    """The ways to score the same random trajectories."""

    def __init__(self, model: Any, shape: argparse.Namespace, rounds: int | None = None) -> None:
        self._model = model
        self._shape = shape
        self._sampled = [
            make_trajectory(shape, rounds or shape.rounds, index)
            for index in range(shape.trajectories)
        ]
        self.trees = [sampled.tree for sampled in self._sampled]
        self.rows = [row for tree in self.trees for row in rows_of(tree)]
        self.longest = max(len(ids) for ids, _ in self.rows)

    def tree(self) -> list[Tensor]:
        return [branch for _, branches in self._trees(self.trees) for branch in branches]

    def tree_own(self) -> list[Tensor]:
        """The branches' scored tokens, then the policy tokens of every trajectory."""
        trees = [Tree(s.ids, s.tree.branches, s.policy) for s in self._sampled]
        values = self._trees(trees)
        scored = [branch for _, branches in values for branch in branches]
        return scored + [own for own, _ in values]

    def released(self) -> list[Tensor]:
        return [
            values
            for first in range(0, len(self.rows), RELEASED_BATCH)
            for values in self.padded(self.rows[first : first + RELEASED_BATCH], self.longest)
        ]

    def sorted_rows(self, rows: Sequence[Row]) -> list[Tensor]:
        result = [torch.empty(0)] * len(rows)
        for batch in self._sorted_batches(rows):
            values = self.padded([rows[index] for index in batch], 0)
            for index, value in zip(batch, values, strict=True):
                result[index] = value
        return result

    def own(self) -> list[Tensor]:
        """The policy tokens of every trajectory, a row each, in a pass of their own."""
        longest_first = sorted(range(len(self._sampled)), key=lambda i: -len(self._sampled[i].ids))
        batches = group_by_tokens(
            longest_first, lambda i: len(self._sampled[i].ids), self._shape.batch_tokens
        )
        result = [torch.empty(0)] * len(self._sampled)
        for batch in batches:
            width = max(len(self._sampled[index].ids) for index in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.long)  # (B, T)
            attention, wanted = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool)
            for row, index in enumerate(batch):
                sampled = self._sampled[index]
                ids[row, : len(sampled.ids)] = torch.tensor(sampled.ids)
                attention[row, : len(sampled.ids)] = 1
                wanted[row, list(sampled.policy)] = True
            logprobs = self._logprobs(ids, attention, wanted)
            for row, index in enumerate(batch):
                result[index] = logprobs[row, list(self._sampled[index].policy)]
        return result

    def padded(self, rows: Sequence[Row], width: int) -> list[Tensor]:
        """Left-padded rows, to ``width`` or their longest; the log-probabilities of their ends."""
        width = max(width, max(len(ids) for ids, _ in rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)  # (B, T)
        attention, wanted = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool)
        for index, (tokens, scored) in enumerate(rows):
            ids[index, width - len(tokens) :] = torch.tensor(tokens)
            attention[index, width - len(tokens) :] = 1
            wanted[index, width - scored :] = True
        logprobs = self._logprobs(ids, attention, wanted)
        return [logprobs[index, width - scored :] for index, (_, scored) in enumerate(rows)]

    def sorted_tokens(self) -> int:
        """Tokens that the sorted side computes, padding included."""
        return sum(
            len(batch) * max(len(self.rows[index][0]) for index in batch)
            for batch in self._sorted_batches(self.rows)
        )

    def tree_tokens(self) -> int:
        """Tokens of the trajectories and of their branches."""
        return sum(len(t.ids) + sum(len(b.ids) for b in t.branches) for t in self.trees)

    def tree_flops(self) -> float:
        """The model's operations of these tokens, as ``common.forward_flops`` counts them."""
        scored = sum(len(b.ids) - b.scored_from for t in self.trees for b in t.branches)
        behind = sum(len(b.ids) * b.prefix for t in self.trees for b in t.branches)
        trunks = [len(t.ids) for t in self.trees]
        branches = [len(b.ids) for t in self.trees for b in t.branches]
        config = self._model.config
        width = int(config.hidden_size * config.num_hidden_layers)
        own = forward_flops(self._model, [*trunks, *branches], scored)
        return own + 4.0 * width * behind

    def _trees(self, trees: Sequence[Tree]) -> list[tuple[Tensor, list[Tensor]]]:
        with autocast(self._shape.dtype):
            values = tree_logprobs(self._model, trees, self._shape.batch_tokens, temperature=1.0)
        return [(value.own, value.branches) for value in values]

    @torch.no_grad()
    def _logprobs(self, ids: Tensor, attention: Tensor, wanted: Tensor) -> Tensor:
        where = device()
        with autocast(self._shape.dtype):
            return token_logprobs(
                self._model, WantedTokens(ids.to(where), attention.to(where), wanted.to(where))
            ).logprobs.cpu()

    def _sorted_batches(self, rows: Sequence[Row]) -> list[list[int]]:
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index][0]))
        return group_by_tokens(
            by_length, lambda index: len(rows[index][0]), self._shape.batch_tokens
        )


def make_trajectory(shape: argparse.Namespace, rounds: int, index: int) -> _Sampled:
    """Random tokens; every round after the first has a memory and is scored."""
    rng = random.Random(shape.seed * 1000 + index)

    def some(count: int) -> list[int]:
        return [rng.randrange(1000) for _ in range(count)]

    ids, answer = some(shape.prompt), some(shape.answer)
    branches: list[Branch] = []
    policy: list[int] = []
    for number in range(1, rounds + 1):
        memory = some(shape.memory)
        if number > 1:
            ids += some(shape.observed)
            branches.append(Branch(len(ids) - 1, (ids[-1], *answer), 1))
            branches.append(Branch(shape.prompt, (*memory, *answer), len(memory)))
        policy += range(len(ids), len(ids) + shape.generated)
        ids += [*memory, *some(shape.generated - shape.memory)]
    longest = max(branch.prefix for branch in branches)
    return _Sampled(tuple(ids), tuple(policy), Tree(tuple(ids[:longest]), tuple(branches)))


def rows_of(tree: Tree) -> list[Row]:
    return [
        ((*tree.ids[: branch.prefix], *branch.ids), len(branch.ids) - branch.scored_from)
        for branch in tree.branches
    ]


if __name__ == "__main__":
    main()
