"""Micro-batches of token sequences under a token budget (specification section 8).

A batch carries per-token loss weights that were computed over the whole optimizer step, so the
loss and its gradient do not depend on how rows are split into micro-batches or ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mempo.learning.micro_batches import TrainingRow, shared_start


@dataclass(frozen=True)
class Batch:
    """Right-padded rows, [B, T] each.

    ``mask`` is 1 on policy tokens; ``weights`` is each token's share of the optimizer step's loss.
    ``engine_logprobs`` is 0 off policy tokens. ``last_of_update`` says that the optimizer steps
    after this micro-batch. ``rows`` are what the batch was made of, for errors. ``shared`` is the
    number of tokens at the start of all rows that are computed once; ``packed``: the model
    computes no padding.
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
    packed: bool = False

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


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
    rows: Sequence[TrainingRow],
    last_of_update: bool,
    share_prompts: bool = False,
    packed: bool = False,
) -> Batch:
    """Pads rows into one batch; without rows, one whose loss is 0. With ``share_prompts`` what all
    rows begin with is computed once; of ``packed`` rows no padding is computed.

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
        packed=packed,
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
