"""The contexts after which a gold answer is scored (specification section 6).

The full context of a scored round is its snapshot; the memory context is the prompt followed by the
round's text up to and including ``</mem>``; the question alone is the prompt. All begin with tokens
that a sequence holds, so that they are given as a prefix of it and the tokens that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mempo.trajectory import Round, TokenSequence, Trajectory

_MEMORY_CLOSE = "</mem>"


@dataclass(frozen=True)
class Context:
    """The first ``prefix`` tokens of ``sequence`` and then its ``own`` tokens, at least one."""

    sequence: TokenSequence
    prefix: int
    own: tuple[int, ...]


@dataclass(frozen=True)
class History:
    """All that a trajectory saw as one sequence, and its length before each round."""

    sequence: TokenSequence
    lengths: dict[int, int]


def whole_history(trajectory: Trajectory) -> History:
    """All that was seen, in one sequence, as a full-context rollout would hold it: the prompt, and
    every round with its result as it was first shown, chat-template glue included.

    For memory-context rollouts, where a round's own sequence holds only what section 9 shows it.
    Raises ``ValueError`` where a round's context does not end with the round before and its result.
    """
    ids = trajectory.sequences[0].ids[: trajectory.prompt_length]
    lengths = {1: len(ids)}
    for before, current in pairwise(trajectory.rounds):
        written = trajectory.sequences[before.sequence].ids[before.start : before.end]
        context = trajectory.sequences[current.sequence].ids[: current.snapshot_length]
        result = len(context) - before.result_tokens
        if context[result - len(written) : result] != written:
            raise ValueError(
                f"{trajectory.name}: the context of round {current.number} does not end with round "
                f"{before.number} and its result of {before.result_tokens} tokens"
            )
        ids = [*ids, *written, *context[result:]]
        lengths[current.number] = len(ids)
    sequence = TokenSequence()
    sequence.append_context(ids)
    return History(sequence, lengths)


def full_context(trajectory: Trajectory, scored: Round, history: History | None) -> Context:
    """The snapshot before the round, or with ``history`` all that was seen before it."""
    sequence, length = trajectory.sequences[scored.sequence], scored.snapshot_length
    if history is not None:
        sequence, length = history.sequence, history.lengths[scored.number]
    return _start_of(sequence, length)


def question_context(trajectory: Trajectory) -> Context:
    """The question alone, before anything was written or seen."""
    return _start_of(trajectory.sequences[0], trajectory.prompt_length)


def _start_of(sequence: TokenSequence, length: int) -> Context:
    return Context(sequence, length - 1, tuple(sequence.ids[length - 1 : length]))


def memory_context(
    tokenizer: Any, trajectory: Trajectory, scored: Round, behind: TokenSequence | None
) -> Context:
    """The prompt and the round's tokens up to ``</mem>``.

    Every sequence of a trajectory begins with the prompt. In memory-context rollouts the sequence
    of the next round goes on with this round, so that it holds the context, except for a last token
    that runs past ``</mem>`` and stands there whole. With ``behind``, a sequence that other
    contexts need as well, the context hangs from the prompt in that one.
    """
    prompt = trajectory.prompt_length
    memory, unchanged = memory_ids(tokenizer, trajectory, scored)
    if behind is not None:
        return Context(behind, prompt, memory)
    if scored.sequence + 1 < len(trajectory.sequences):
        following = trajectory.sequences[scored.sequence + 1]
        shared = min(unchanged, len(memory) - 1)
        if tuple(following.ids[prompt : prompt + unchanged]) == memory[:unchanged]:
            return Context(following, prompt + shared, memory[shared:])
    return Context(trajectory.sequences[scored.sequence], prompt, memory)


def memory_ids(
    tokenizer: Any, trajectory: Trajectory, scored: Round
) -> tuple[tuple[int, ...], int]:
    """The round's tokens up to ``</mem>``, and how many of them are as the sequence holds them.

    A last token that runs past the tag (``><`` in SmolLM2) is replaced by the tokens of its part up
    to it (specification sections 2 and 6). Raises ``ValueError`` where the tokenizer has none.
    """
    assert scored.memory_span is not None
    sequence = trajectory.sequences[scored.sequence]
    ids = tuple(sequence.ids[scored.start : scored.memory_span[1]])
    if _MEMORY_CLOSE not in scored.text:
        return ids, len(ids)
    text, before = _decode(tokenizer, ids), _decode(tokenizer, ids[:-1])
    found = text.find(_MEMORY_CLOSE, max(len(before) - len(_MEMORY_CLOSE) + 1, 0))
    end = found + len(_MEMORY_CLOSE)
    if found < 0 or end == len(text):
        return ids, len(ids)
    part = text[len(before) : end]
    for rest in (
        tokenizer.encode(part, add_special_tokens=False),
        # Some tokenizers put a space before every text that they encode, not before characters.
        tokenizer.convert_tokens_to_ids(list(part)),
    ):
        cut = (*ids[:-1], *rest)
        if None not in cut and _decode(tokenizer, cut) == text[:end]:
            return cut, len(ids) - 1
    raise ValueError(
        f"{trajectory.name}, round {scored.number}: the tokenizer has no tokens for {part!r}, the "
        f"part up to {_MEMORY_CLOSE} of a token that runs past it"
    )


def _decode(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )
