"""Contexts followed by scored texts, and their two ways through the model (section 6).

``score_trees`` computes each sequence once (``tree_scoring.py``). ``score_padded`` is the reference
with the same numbers: every context is a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mempo.config import ScoringConfig
from mempo.learning.contexts import Context
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.micro_batches import group_by_tokens
from mempo.learning.tree_scoring import Branch, Tree, tree_logprobs
from mempo.trajectory import Round, TokenSequence


@dataclass(frozen=True)
class ScoredText:
    """The scored text's token ids and the answer mask: 1 on tokens that carry gold text."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


def encode_answer(tokenizer: Any, config: ScoringConfig, gold: str) -> ScoredText:
    """The scored text for one gold answer, tokenized once.

    The mask is 1 on exactly the tokens whose characters overlap the gold text.
    """
    # The two placeholders are replaced literally, so that a gold answer with braces is safe.
    head, tail = (
        part.replace("{filler}", config.filler) for part in config.answer_template.split("{gold}")
    )
    encoding = tokenizer(head + gold + tail, add_special_tokens=False, return_offsets_mapping=True)
    start, end = len(head), len(head) + len(gold)
    mask = tuple(int(first < end and last > start) for first, last in encoding["offset_mapping"])
    if not any(mask):
        raise ValueError(f"the gold answer {gold!r} has no token of its own: it cannot be scored")
    return ScoredText(tuple(encoding["input_ids"]), mask)


@dataclass(frozen=True)
class ScoredRow:
    """A context of a round, its memory's or the baseline's, followed by a scored text."""

    round: Round
    context: Context
    text: ScoredText
    gold: str
    is_memory: bool

    def __len__(self) -> int:
        return self.prefix + len(self.own) + len(self.text.ids)

    @property
    def sequence(self) -> TokenSequence:
        return self.context.sequence

    @property
    def prefix(self) -> int:
        return self.context.prefix

    @property
    def own(self) -> tuple[int, ...]:
        return self.context.own

    @property
    def ids(self) -> tuple[int, ...]:
        """Context and scored text."""
        return (*self.sequence.ids[: self.prefix], *self.own, *self.text.ids)

    @property
    def key(self) -> RowKey:
        return id(self.round), self.is_memory, self.gold


RowKey = tuple[int, bool, str]
"""Identity of the round, whether it is the memory context, gold text."""


def score_trees(
    model: Any,
    rows: Sequence[ScoredRow],
    batch_tokens: int,
    old: Sequence[TokenSequence],
    old_temperature: float,
    progress: Callable[[int], None],
    passes_on_every_rank: Callable[[int], int],
) -> list[Tensor]:
    """Log-probabilities of each row's scored text, on the CPU, [len(text)], and those of the
    policy tokens of the sequences ``old``, written into them.

    One tree for each sequence; equal ones, of trajectories that are alike, once.
    """
    rows_of: dict[int, list[int]] = {}
    sequences = {id(sequence): sequence for sequence in old}
    for index, row in enumerate(rows):
        rows_of.setdefault(id(row.sequence), []).append(index)
        sequences.setdefault(id(row.sequence), row.sequence)
    wanted = {id(sequence) for sequence in old}
    places: dict[Tree, list[int]] = {}
    for key, sequence in sequences.items():
        members = [rows[index] for index in rows_of.get(key, [])]
        own = tuple(i for i, policy in enumerate(sequence.mask) if policy and key in wanted)
        longest = max([row.prefix for row in members] + [own[-1] + 1 if own else 1])
        branches = (Branch(r.prefix, r.own + r.text.ids, len(r.own)) for r in members)
        tree = Tree(tuple(sequence.ids[:longest]), tuple(branches), own)
        places.setdefault(tree, []).append(key)
    done = sum(len(tree.branches) for tree in places)
    values = tree_logprobs(
        model,
        [*places],
        batch_tokens,
        old_temperature,
        progress,
        passes_on_every_rank,
    )
    progress(len(rows) - done)
    results: list[Tensor] = [torch.empty(0)] * len(rows)
    for (tree, keys), of_tree in zip(places.items(), values, strict=True):
        for key in keys:
            for index, logp in zip(rows_of.get(key, []), of_tree.branches, strict=True):
                results[index] = logp
            if key in wanted:
                old_logprobs = [0.0] * len(sequences[key])
                for position, logp in zip(tree.own, of_tree.own.tolist(), strict=True):
                    old_logprobs[position] = logp
                sequences[key].old_logprobs = old_logprobs
    return results


@torch.no_grad()
def score_padded(
    model: Any,
    rows: Sequence[ScoredRow],
    batch_tokens: int,
    progress: Callable[[int], None],
    passes_on_every_rank: Callable[[int], int],
) -> list[Tensor]:
    """Every context a row of its own, left-padded."""
    # The trajectories of a group often begin alike, and short memories repeat: equal rows are
    # computed once.
    alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for index, row in enumerate(rows):
        alike.setdefault((row.ids, len(row.text.ids)), []).append(index)
    groups = sorted(alike.values(), key=lambda group: len(rows[group[0]]))
    results: list[Tensor | None] = [None] * len(rows)
    batches = group_by_tokens(groups, lambda group: len(rows[group[0]]), batch_tokens)
    # Exchanged before the passes: those of sharded models are exchanges as well.
    empty = passes_on_every_rank(len(batches)) - len(batches)
    for batch in batches:
        logprobs = _padded_logprobs(model, [rows[group[0]] for group in batch])
        for group, logp in zip(batch, logprobs, strict=True):
            for index in group:
                results[index] = logp
        progress(sum(map(len, batch)))
    for _ in range(empty):
        _empty_forward(model)
    return [logp for logp in results if logp is not None]


def _padded_logprobs(model: Any, rows: list[ScoredRow]) -> list[Tensor]:
    """Left-pads the rows and scores the texts at their ends."""
    device = next(model.parameters()).device
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)  # (B, T)
    attention = torch.zeros_like(ids)
    wanted = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row.ids)
        attention[index, width - len(row) :] = 1
        wanted[index, width - len(row.text.ids) :] = True
    logprobs = token_logprobs(
        model, WantedTokens(ids.to(device), attention.to(device), wanted.to(device))
    ).logprobs.cpu()
    return [logprobs[index, width - len(row.text.ids) :] for index, row in enumerate(rows)]


def _empty_forward(model: Any) -> None:
    """Keeps step with ranks that have more batches."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
