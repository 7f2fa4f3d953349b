"""The micro-batches of an epoch's optimizer steps, as Lightning's loader asks for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from torch.utils.data import Dataset

from mempo.learning.batches import Batch, collate
from mempo.learning.micro_batches import TrainingRow, plan_micro_batches
from mempo.runtime.gather import gather_objects, own_rank


class EpochDataset(Dataset[Batch]):
    """An epoch's micro-batches, laid out and collated when they are asked for, after scoring.

    Args:
        updates: the rows of each optimizer step.
        counts: its number of micro-batches, the same on every rank.
        budget: the tokens of a micro-batch (``plan_micro_batches``).
        skip_zeros: leave out rows whose advantages are all 0, as those of constant groups, since
            they add nothing to the gradient; of a step in which no process has others the shortest
            stays, so that the engine's mismatch is always measured. A step that needs fewer
            micro-batches than it has begins with empty ones.
        share_prompts: of each optimizer step, whether its micro-batches compute shared prompts
            once.
        packed: whether micro-batches are computed without their padding.
    """

    def __init__(
        self,
        updates: Sequence[list[TrainingRow]],
        counts: Sequence[int],
        budget: int,
        skip_zeros: bool,
        share_prompts: Sequence[bool],
        packed: bool = False,
    ) -> None:
        self._updates = updates
        self._counts = counts
        self._budget = budget
        self._skip_zeros = skip_zeros
        self._share_prompts = share_prompts
        self._packed = packed

    def __len__(self) -> int:
        return sum(self._counts)

    def __getitem__(self, index: int) -> Batch:
        return collate(*self._plan[index], self._packed)

    @cached_property
    def _plan(self) -> list[tuple[list[TrainingRow], bool, bool]]:
        """The arguments of ``collate`` for every micro-batch. Every process asks for its first one
        at the same time, and then exchanges what the steps hold."""
        plan: list[tuple[list[TrainingRow], bool, bool]] = []
        for trained, count, share in zip(
            self._trained_rows(), self._counts, self._share_prompts, strict=True
        ):
            batches = plan_micro_batches(trained, self._budget, share, self._packed)
            batches = [[] for _ in range(count - len(batches))] + batches
            plan += [(batch, index == count - 1, share) for index, batch in enumerate(batches)]
        return plan

    def _trained_rows(self) -> list[list[TrainingRow]]:
        """The rows of each step that are computed."""
        if not self._skip_zeros:
            return list(self._updates)
        trained = [[row for row in rows if row.is_trained] for rows in self._updates]
        lengths = [[len(row.sequence) for row in rows] for rows in self._updates]
        shortest = [min(of_step, default=math.inf) for of_step in lengths]
        everyone = gather_objects((list(map(bool, trained)), shortest))
        for step, rows in enumerate(trained):
            if any(some[step] for some, _ in everyone):
                continue
            least = min(of_step[step] for _, of_step in everyone)
            first = [of_step[step] for _, of_step in everyone].index(least)
            if first == own_rank() and least < math.inf:
                rows.append(self._updates[step][lengths[step].index(int(least))])
        return trained
