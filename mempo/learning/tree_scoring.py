"""One forward per token sequence for all its scored texts (specification section 6, ``tree``).

Every snapshot is a prefix of its sequence, and every memory context begins with the prompt, which
is a prefix too. So a sequence's tokens are computed once and their keys and values kept; then only
the branch tokens follow: after a snapshot the scored text, after the prompt the memory and the
scored text. A branch sees its own prefix and itself, and stands at the positions that it would
have in a row of its own, so the numbers are those of ``padded``:

    sequence   p p p | round 1 | obs | round 2 | obs | round 3 ...
                     \\- memory 2, text     \\- text after snapshot 3
                     \\- memory 3, text

What all sequences of a pass begin with, such as the instructions, is computed once for them. The
pass over the sequences also gives the log-probabilities of their own tokens where they are wanted
(π_old of specification section 8). The passes go through the model's own forward (a 4-D attention
mask over kept keys and values), so sharded and wrapped models work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mempo.learning.logprobs import Targets, statistics_at
from mempo.learning.micro_batches import group_by_tokens
from mempo.learning.shared_prefix import attention_behind_prefix, common_start, prefix_cache

MASK_ELEMENTS = 2**28
"""Entries of the attention mask of one pass over branches: 256 MiB of booleans."""

_WORTH_A_PASS = 128  # tokens

_WORTH_A_CROP = 2**20
"""Pairs of a branch token and a kept token that does not concern it, from which on the branches
behind a shorter prefix get a pass of their own, over keys and values cropped to it."""


@dataclass(frozen=True)
class Branch:
    """Tokens that follow the first ``prefix`` tokens of a sequence, of which the last ones, from
    index ``scored_from`` (at least 1) on, are scored."""

    prefix: int
    ids: tuple[int, ...]
    scored_from: int


@dataclass(frozen=True)
class Tree:
    """A sequence's tokens as far as they are needed, its branches, and the ascending positions (at
    least 1) of those own tokens whose log-probabilities are wanted."""

    ids: tuple[int, ...]
    branches: tuple[Branch, ...]
    own: tuple[int, ...] = ()


@dataclass(frozen=True)
class TreeLogProbs:
    """Log-probabilities on the CPU: of the ``own`` tokens, [len(own)], and of every branch's scored
    tokens."""

    own: Tensor
    branches: list[Tensor]


@dataclass(frozen=True)
class _Slot:
    """A branch's place in a pass: row and first column."""

    tree: int
    branch: int
    row: int
    column: int


@dataclass(frozen=True)
class _Pass:
    """Trees whose sequences are computed together, the number of tokens at their start that are
    computed once for all, and the passes over their branches."""

    trees: tuple[int, ...]
    shared: int
    chunks: tuple[tuple[_Slot, ...], ...]


@torch.no_grad()
def tree_logprobs(
    model: Any,
    trees: Sequence[Tree],
    batch_tokens: int,
    temperature: float = 1.0,
    progress: Callable[[int], None] = lambda done: None,
    passes_on_every_rank: Callable[[int], int] = lambda own: own,
) -> list[TreeLogProbs]:
    """Log-probabilities of every tree's own tokens and of its branches' scored tokens.

    ``batch_tokens`` bounds the padded tokens of a pass (or one sequence, or one branch). The logits
    of own tokens are divided by ``temperature``, those of branches are not. ``progress`` is told
    the number of branches done. ``passes_on_every_rank`` turns this rank's number of forward passes
    into the largest of all ranks.
    """
    plan = plan_passes(trees, batch_tokens)
    passes = sum(1 + bool(entry.shared) + len(entry.chunks) for entry in plan)
    # Exchanged before the passes: those of sharded models are exchanges between the ranks as well.
    empty = passes_on_every_rank(passes) - passes
    branches: list[list[Tensor]] = [[torch.empty(0)] * len(tree.branches) for tree in trees]
    own: list[Tensor] = [torch.empty(0)] * len(trees)
    for entry in plan:
        members = [trees[index] for index in entry.trees]
        cache, values = _run_sequences(model, members, entry.shared, temperature)
        for index, of_tree in zip(entry.trees, values, strict=True):
            own[index] = of_tree
        for chunk in entry.chunks:  # behind ever shorter prefixes
            kept = max(trees[slot.tree].branches[slot.branch].prefix for slot in chunk)
            cache.crop(kept - cache.get_seq_length())
            for slot, scored in zip(
                chunk, _run_branches(model, trees, chunk, cache, len(members)), strict=True
            ):
                branches[slot.tree][slot.branch] = scored
            progress(len(chunk))
    for _ in range(empty):
        _run_sequences(model, [Tree((0, 0), ())], 0, temperature)
    return [TreeLogProbs(*result) for result in zip(own, branches, strict=True)]


def plan_passes(trees: Sequence[Tree], batch_tokens: int) -> list[_Pass]:
    """Groups trees of similar length, and their branches into passes, under the token budget."""
    longest_first = sorted(range(len(trees)), key=lambda index: -len(trees[index].ids))
    groups = group_by_tokens(longest_first, lambda index: len(trees[index].ids), batch_tokens)
    return [
        _Pass(
            tuple(group),
            _shared_start([trees[index] for index in group]),
            tuple(_chunks(trees, group, batch_tokens)),
        )
        for group in groups
    ]


def _shared_start(trees: Sequence[Tree]) -> int:
    """How many tokens at the start of all sequences are computed once: 0 where that would save less
    than a pass of its own costs. What predicts a wanted own token is never among them."""
    longest = min(len(tree.ids) for tree in trees) - 1
    longest = min([longest, *(tree.own[0] - 1 for tree in trees if tree.own)])
    shared = common_start([tree.ids for tree in trees], longest)
    return shared if shared * (len(trees) - 1) >= _WORTH_A_PASS else 0


def _chunks(
    trees: Sequence[Tree], group: list[int], batch_tokens: int
) -> Iterator[tuple[_Slot, ...]]:
    """Passes over the branches of a group, those behind the longest prefixes first. In each, a row
    takes branches of its own tree as long as they fit into its share of the budget and of the mask
    (at least one), and until it is worth cropping the kept keys and values for the rest."""
    past = len(trees[group[0]].ids)
    share = min(batch_tokens, MASK_ELEMENTS // (past + batch_tokens)) // len(group)
    waiting = [_longest_prefix_first(trees[index].branches) for index in group]
    while any(waiting):
        chunk: list[_Slot] = []
        for row, index in enumerate(group):
            branches, column, longest = trees[index].branches, 0, 0
            rest = sum(len(branches[number].ids) for number in waiting[row])
            while waiting[row]:
                branch = branches[waiting[row][0]]
                size = len(branch.ids)
                if column and column + size > share:
                    break
                longest = max(longest, branch.prefix)
                if 2 * branch.prefix < longest and rest * (longest - branch.prefix) > _WORTH_A_CROP:
                    break
                chunk.append(_Slot(index, waiting[row].pop(0), row, column))
                column += size
                rest -= size
        yield tuple(chunk)


def _longest_prefix_first(branches: Sequence[Branch]) -> list[int]:
    return sorted(range(len(branches)), key=lambda number: -branches[number].prefix)


def _run_sequences(
    model: Any, trees: Sequence[Tree], shared: int, temperature: float
) -> tuple[DynamicCache, list[Tensor]]:
    """The sequences, right-padded, behind their shared start; their keys and values, and the
    log-probabilities of their own tokens.

    Padding stands behind everything that attention may look at, so it needs no mask; without one,
    attention kernels skip the pairs that causality forbids.
    """
    device = next(model.parameters()).device
    width = max(len(tree.ids) for tree in trees)
    ids = torch.zeros(len(trees), width, dtype=torch.long)  # (B, T)
    for row, tree in enumerate(trees):
        ids[row, : len(tree.ids)] = torch.tensor(tree.ids)
    ids = ids.to(device)
    cache = prefix_cache(model, ids[:1, :shared], len(trees)) if shared else DynamicCache()

    def forward(**more: Any) -> Any:
        with attention_behind_prefix(model):
            return model(
                input_ids=ids[:, shared:],
                past_key_values=cache,
                use_cache=True,
                **more,
            )

    counts = [len(tree.own) for tree in trees]
    if not any(counts):
        forward(logits_to_keep=1)
        return cache, [torch.empty(0) for _ in trees]
    rows = torch.tensor([row for row, tree in enumerate(trees) for _ in tree.own], device=device)
    columns = torch.tensor([column for tree in trees for column in tree.own], device=device)
    values = statistics_at(
        model, forward, Targets(rows, columns - 1 - shared, ids[rows, columns]), temperature
    )
    return cache, list(torch.split(values[:, 0].cpu(), counts))


def _run_branches(
    model: Any, trees: Sequence[Tree], chunk: Sequence[_Slot], cache: DynamicCache, rows: int
) -> list[Tensor]:
    """One forward over branch tokens behind kept keys and values; the scored log-probabilities of
    each slot."""
    past = cache.get_seq_length()
    branches = [trees[slot.tree].branches[slot.branch] for slot in chunk]
    width = max(slot.column + len(branch.ids) for slot, branch in zip(chunk, branches, strict=True))
    ids = torch.zeros(rows, width, dtype=torch.long)  # (B, L)
    positions, prefixes = torch.zeros_like(ids), torch.zeros_like(ids)
    owners = -1 - torch.arange(width).repeat(rows, 1)  # padding is each its own
    row_of: list[int] = []
    column_of: list[int] = []
    counts: list[int] = []
    for number, (slot, branch) in enumerate(zip(chunk, branches, strict=True)):
        size, first = len(branch.ids), slot.column
        own = slice(first, first + size)
        ids[slot.row, own] = torch.tensor(branch.ids)
        positions[slot.row, own] = branch.prefix + torch.arange(size)
        prefixes[slot.row, own] = branch.prefix
        owners[slot.row, own] = number
        counts.append(size - branch.scored_from)
        row_of += [slot.row] * counts[-1]
        column_of += range(first + branch.scored_from, first + size)
    device = next(model.parameters()).device
    row_index, columns = torch.tensor(row_of), torch.tensor(column_of)
    visible = _visible(prefixes.to(device), owners.to(device), past)
    with _maskable_attention(model) as boolean:
        mask = visible
        if not boolean:
            mask = torch.zeros(visible.shape, device=device).masked_fill(~visible, -1e30)
        values = statistics_at(
            model,
            lambda: model(
                input_ids=ids.to(device),
                attention_mask=mask.unsqueeze(1),
                position_ids=positions.to(device),
                past_key_values=cache,
                use_cache=True,
            ),
            Targets(
                row_index.to(device),
                (columns - 1).to(device),
                ids[row_index, columns].to(device),
            ),
        )
    return list(torch.split(values[:, 0].cpu(), counts))


def _visible(prefixes: Tensor, owners: Tensor, past: int) -> Tensor:
    """Whether a token of ``prefixes`` and ``owners`` [B, L] looks at each of the ``past`` kept ones
    and of its own pass, bool [B, L, past + L]: at its branch's prefix, and at what stands before it
    in its branch. Made where it is used: on a GPU a mask of ``MASK_ELEMENTS`` is not carried
    there."""
    device, width = owners.device, owners.shape[1]
    kept = torch.arange(past, device=device) < prefixes.unsqueeze(-1)  # (B, L, T)
    same = owners.unsqueeze(-1) == owners.unsqueeze(-2)  # (B, L, L)
    before = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    return torch.cat([kept, same & before], dim=-1)


@contextmanager
def _maskable_attention(model: Any) -> Iterator[bool]:
    """Attention for branch passes; gives whether it takes a boolean mask.

    ``sdpa`` takes a boolean mask and ``eager`` one that is added, on every device. Flash attention
    takes no mask of this shape, so these passes use ``sdpa`` instead, on the same keys and values.
    """
    config = model.config
    chosen = config._attn_implementation
    if chosen not in ("sdpa", "eager"):
        config._attn_implementation = "sdpa"
    try:
        yield config._attn_implementation == "sdpa"
    finally:
        config._attn_implementation = chosen
