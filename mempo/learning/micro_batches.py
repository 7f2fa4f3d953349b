"""Which rows an optimizer step computes together: micro-batches under a token budget (around the
method)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

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


def group_packed(
    items: Iterable[Item], length: Callable[[Item], int], budget: int
) -> list[list[Item]]:
    """Groups items so that each group has at most ``budget`` tokens (or one item). Keeps the
    order; without some items there are never more groups."""
    groups: list[list[Item]] = []
    tokens = 0
    for item in items:
        if not groups or tokens + length(item) > budget:
            groups.append([])
            tokens = 0
        groups[-1].append(item)
        tokens += length(item)
    return groups


def plan_micro_batches(
    rows: Sequence[TrainingRow], budget: int, share_prompts: bool = False, packed: bool = False
) -> list[list[TrainingRow]]:
    """Groups rows of similar length, longest first, into micro-batches of at most ``budget``
    tokens (or one row): after padding, or where they are ``packed``, without.

    With ``share_prompts`` all rows of a micro-batch have one prompt, whose tokens count once.
    Leaving rows out never makes a plan longer.
    """
    longest_first = sorted(rows, key=lambda row: -len(row.sequence))
    if not share_prompts:
        if packed:
            return group_packed(longest_first, lambda row: len(row.sequence), budget)
        return group_by_tokens(longest_first, lambda row: len(row.sequence), budget)
    by_prompt: dict[tuple[int, ...], list[TrainingRow]] = {}
    for row in longest_first:
        by_prompt.setdefault(row.prompt, []).append(row)
    plan = _packed_sharing_batches if packed else _sharing_batches
    return [batch for group in by_prompt.values() for batch in plan(group, budget)]


def _packed_sharing_batches(
    group: Sequence[TrainingRow], budget: int
) -> Iterable[list[TrainingRow]]:
    """Micro-batches of rows with one prompt, of which what all of them begin with counts once."""
    shared = shared_start(group)
    return group_packed(group, lambda row: len(row.sequence) - shared, budget - shared)


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


def is_sharing_worth_it(rows: Sequence[TrainingRow], budget: int, packed: bool = False) -> bool:
    """Whether computing shared prompts once leaves at most ``WORTH_SHARING`` of the tokens, padding
    included where it is computed. Less is not worth the passes over the prompts."""
    sharing, plain = (
        sum(
            _computed_tokens(batch, shared_start(batch) if share else 0, packed)
            for batch in plan_micro_batches(rows, budget, share, packed)
        )
        for share in (True, False)
    )
    return 0 < sharing <= WORTH_SHARING * plain


def _computed_tokens(batch: Sequence[TrainingRow], shared: int, packed: bool) -> int:
    own = [len(row.sequence) - shared for row in batch]
    return shared + (sum(own) if packed else len(own) * max(own))


def shared_start(rows: Sequence[TrainingRow]) -> int:
    """How many tokens all rows begin with that predict none of the policy's: 0 for a single row."""
    if len(rows) < 2:
        return 0
    first_policy = min(row.sequence.mask.index(1) for row in rows)
    return common_start([row.sequence.ids for row in rows], first_policy - 1)
