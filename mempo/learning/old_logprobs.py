"""The policy's own log-probabilities at the start of an epoch (specification section 8, π_old).

Only needed with several updates per epoch: in the first, the policy is its own π_old. Where the
memory is scored as a tree, they come from that pass (``mempo/learning/scoring.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mempo.learning.batches import pad_rows
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.micro_batches import TrainingRow, plan_micro_batches
from mempo.trajectory import TokenSequence, Trajectory


def trained_sequences(trajectories: Iterable[Trajectory]) -> list[TokenSequence]:
    """The sequences that hold policy tokens."""
    return [
        sequence
        for trajectory in trajectories
        for sequence in trajectory.sequences
        if sequence.policy_tokens
    ]


@torch.no_grad()
def write_old_logprobs(
    model: Any,
    trajectories: Sequence[Trajectory],
    temperature: float,
    batch_tokens: int,
    batches_on_every_rank: Callable[[int], int] = lambda own: own,
) -> None:
    """Writes ``old_logprobs`` into every sequence that holds policy tokens, in a pass of its own.

    Sharded models need the same number of forward passes on every rank, so ranks with fewer rows
    repeat an empty one: ``batches_on_every_rank`` turns this rank's number into the largest.
    """
    rows = [
        TrainingRow(trajectory, sequence, 0.0)
        for trajectory in trajectories
        for sequence in trained_sequences([trajectory])
    ]
    batches = plan_micro_batches(rows, batch_tokens)
    batches += [[] for _ in range(batches_on_every_rank(len(batches)) - len(batches))]
    device = next(model.parameters()).device
    for batch in batches:
        padded = pad_rows(batch)
        logprobs = token_logprobs(
            model,
            WantedTokens(
                padded.ids.to(device), padded.attention_mask.to(device), padded.mask.to(device)
            ),
            temperature,
        ).logprobs.cpu()
        for index, row in enumerate(batch):
            row.sequence.old_logprobs = logprobs[index, : len(row.sequence)].tolist()
