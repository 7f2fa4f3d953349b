"""Micro-batches of token sequences under a token budget (specification section 8).

A batch carries per-token loss weights that were computed over the whole optimizer step, so the
loss and its gradient do not depend on how rows are split into micro-batches or ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from mempo.learning.shared_prefix import common_start
from mempo.trajectory import TokenSequence, Trajectory

Item = TypeVar("Item")

WORTH_SHARING = 0.9
"""Share of the tokens that must at most be left where shared prompts are computed once."""


@dataclass(frozen=True)
class TrainingRow:
    """One token sequence of a trajectory and the weight of each of its policy tokens."""

    trajectory: Trajectory
    sequence: TokenSequence
    token_weight: float

    @property
    def prompt(self) -> tuple[int, ...]:
        """The token ids of the trajectory's prompt, with which its sequences begin."""
        return tuple(self.sequence.ids[: self.trajectory.prompt_length])

    def place(self, position: int) -> str:
        """How errors name a position of the sequence: trajectory, round and position."""
        sequences = self.trajectory.sequences
        begun = [
            round_.number
            for round_ in self.trajectory.rounds
            if sequences[round_.sequence] is self.sequence and round_.start <= position
        ]
        of_round = f", round {begun[-1]}" if begun else ""
        return f"{self.trajectory.name}{of_round}, position {position}"

    @property
    def is_trained(self) -> bool:
        """False when every advantage is 0."""
        return self.sequence.advantages is None or any(self.sequence.advantages)


@dataclass(frozen=True)
class Batch:
    """Right-padded rows, [B, T] each.

    ``mask`` is 1 on policy tokens; ``weights`` is each token's share of the optimizer step's loss.
    ``engine_logprobs`` is 0 off policy tokens. ``last_of_update`` says that the optimizer steps
    after this micro-batch. ``rows`` are what the batch was made of, for errors. ``shared`` is the
    number of tokens at the start of all rows that are computed once.
    """

    ids: Tensor
    attention_mask: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    engine_logprobs: Tensor
    old_logprobs: Tensor | None
    rows: tuple[TrainingRow, ...]
    last_of_update: bool
    shared: int = 0

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def group_by_tokens(
    items: Iterable[Item], length: Callable[[Item], int], budget: int
) -> list[list[Item]]:
    """Groups items of similar length, sorted by it one way or the other, so that each group has at
    most ``budget`` tokens once all are padded to its longest (or one item). Keeps the order."""
    groups: list[list[Item]] = []
    for item in items:
        last = groups[-1] if groups else []
        if last and (len(last) + 1) * max(length(last[0]), length(item)) <= budget:
            last.append(item)
        else:
            groups.append([item])
    return groups


def plan_micro_batches(
    rows: Sequence[TrainingRow], budget: int, share_prompts: bool = False
) -> list[list[TrainingRow]]:
    """Groups rows of similar length, longest first, into micro-batches of at most ``budget``
    tokens after padding (or one row).

    With ``share_prompts`` all rows of a micro-batch have one prompt, whose tokens count once.
    Leaving rows out never makes a plan longer.
    """
    longest_first = sorted(rows, key=lambda row: -len(row.sequence))
    if not share_prompts:
        return group_by_tokens(longest_first, lambda row: len(row.sequence), budget)
    by_prompt: dict[tuple[int, ...], list[TrainingRow]] = {}
    for row in longest_first:
        by_prompt.setdefault(row.prompt, []).append(row)
    return [batch for group in by_prompt.values() for batch in _sharing_batches(group, budget)]


def _sharing_batches(group: Sequence[TrainingRow], budget: int) -> Iterator[list[TrainingRow]]:
    """Micro-batches of rows with one prompt, which come longest first."""
    batch: list[TrainingRow] = []
    for row in group:
        longest, shared = len((batch or [row])[0].sequence), shared_start([*batch, row])
        own = (len(batch) + 1) * (longest - shared)
        if batch and shared + own > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def is_sharing_worth_it(rows: Sequence[TrainingRow], budget: int) -> bool:
    """Whether computing shared prompts once leaves at most ``WORTH_SHARING`` of the tokens, padding
    included. Less is not worth the passes over the prompts."""
    sharing, plain = (
        sum(
            shared + len(batch) * (len(batch[0].sequence) - shared)
            for batch in plan_micro_batches(rows, budget, share)
            for shared in [shared_start(batch) if share else 0]
        )
        for share in (True, False)
    )
    return 0 < sharing <= WORTH_SHARING * plain


def shared_start(rows: Sequence[TrainingRow]) -> int:
    """How many tokens all rows begin with that predict none of the policy's: 0 for a single row."""
    if len(rows) < 2:
        return 0
    first_policy = min(row.sequence.mask.index(1) for row in rows)
    return common_start([row.sequence.ids for row in rows], first_policy - 1)


@dataclass(frozen=True)
class PaddedRows:
    """Right-padded ids, attention mask and policy mask, [B, T]."""

    ids: Tensor
    attention_mask: Tensor
    mask: Tensor


def pad_rows(rows: Sequence[TrainingRow]) -> PaddedRows:
    """Pads rows on the right. Without rows it is one row without policy tokens, with which a rank
    that has no work of its own keeps step with the others."""
    width = max((len(row.sequence) for row in rows), default=2)
    ids = torch.zeros(max(len(rows), 1), width, dtype=torch.long)
    attention_mask = torch.zeros_like(ids)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    attention_mask[:, 0] = 1
    for index, row in enumerate(rows):
        length = len(row.sequence)
        ids[index, :length] = torch.tensor(row.sequence.ids)
        attention_mask[index, :length] = 1
        mask[index, :length] = torch.tensor(row.sequence.mask, dtype=torch.bool)
    return PaddedRows(ids, attention_mask, mask)


def collate(
    rows: Sequence[TrainingRow], last_of_update: bool, share_prompts: bool = False
) -> Batch:
    """Pads rows into one batch; without rows, one whose loss is 0. With ``share_prompts`` what all
    rows begin with is computed once.

    Raises:
        ValueError: a row has no advantages (the memory reward callback has not run), an advantage
            stands on a token that is not the policy's, or some rows have old log-probabilities and
            others have none.
    """
    advantages = [_checked_advantages(row) for row in rows]
    padded = pad_rows(rows)
    weights = torch.zeros(padded.ids.shape)
    for index, row in enumerate(rows):
        weights[index] = padded.mask[index] * row.token_weight
    old = [row.sequence.old_logprobs for row in rows]
    if None in old and any(values is not None for values in old):
        missing = rows[old.index(None)].trajectory.name
        raise ValueError(f"{missing} has no old log-probabilities, but other rows have them")
    return Batch(
        ids=padded.ids,
        attention_mask=padded.attention_mask,
        mask=padded.mask,
        advantages=_padded(advantages, padded.ids),
        weights=weights,
        engine_logprobs=_padded(
            [[value or 0.0 for value in row.sequence.logprobs] for row in rows], padded.ids
        ),
        old_logprobs=_padded([values for values in old if values is not None], padded.ids)
        if rows and None not in old
        else None,
        rows=tuple(rows),
        last_of_update=last_of_update,
        shared=shared_start(rows) if share_prompts else 0,
    )


def _padded(values: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    result = torch.zeros(like.shape)
    for index, row in enumerate(values):
        result[index, : len(row)] = torch.tensor(row)
    return result


def _checked_advantages(row: TrainingRow) -> list[float]:
    advantages = row.sequence.advantages
    if advantages is None:
        raise ValueError(
            f"{row.trajectory.name} has no advantages: it was not scored. MemoryRewardCallback "
            "must be among the trainer's callbacks"
        )
    lengths = len(row.sequence.ids), len(row.sequence.mask), len(row.sequence.logprobs)
    if {*lengths, len(advantages)} != {len(advantages)}:
        raise ValueError(
            f"{row.trajectory.name}: ids, mask, log-probabilities and advantages have lengths "
            f"{lengths} and {len(advantages)}"
        )
    for position, (advantage, is_policy) in enumerate(
        zip(advantages, row.sequence.mask, strict=True)
    ):
        if advantage != 0.0 and not is_policy:
            raise ValueError(
                f"{row.place(position)}: there is an advantage, but this is not a policy token"
            )
    return advantages
