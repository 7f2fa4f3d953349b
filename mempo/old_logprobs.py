"""The policy's own log-probabilities at the start of an epoch (specification section 8, π_old)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mempo.batches import TrainingRow, pad_rows, plan_micro_batches
from mempo.config import Config
from mempo.gather import gather_objects
from mempo.logprobs import token_logprobs
from mempo.trajectory import Trajectory


def write_old_logprobs(model: Any, trajectories: Sequence[Trajectory], config: Config) -> None:
    """Writes ``old_logprobs`` into every sequence that holds policy tokens.

    Only needed with several updates per epoch: in the first, the policy is its own π_old. Sharded
    models need the same number of forward passes on every rank, so ranks with fewer rows repeat an
    empty one.
    """
    rows = [
        TrainingRow(trajectory, sequence, 0.0)
        for trajectory in trajectories
        for sequence in trajectory.sequences
        if sequence.policy_tokens
    ]
    batches = plan_micro_batches(rows, config.optimizer.micro_batch_tokens)
    batches += [[] for _ in range(max(gather_objects(len(batches))) - len(batches))]
    device = next(model.parameters()).device
    for batch in batches:
        padded = pad_rows(batch)
        logprobs = token_logprobs(
            model,
            padded.ids.to(device),
            padded.attention_mask.to(device),
            padded.mask.to(device),
            config.rollout.temperature,
        ).logprobs.cpu()
        for index, row in enumerate(batch):
            row.sequence.old_logprobs = logprobs[index, : len(row.sequence)].tolist()
