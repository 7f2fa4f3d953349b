"""Tasks, rounds and trajectories as typed data (specification sections 1 and 4).

A trajectory holds token ids exactly as they went into the engine and came out of it. What the
model sampled itself (policy tokens) carries mask 1; prompts, observations, chat-template glue and
prefilled tags carry mask 0. In full-context rollouts a trajectory is one token sequence and every
snapshot is a prefix of it, stored as a length. In memory-context rollouts each round has its own
sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any


class SpanKind(IntEnum):
    """What a token is. Policy tokens are memory, thought, action or other; the rest is context."""

    CONTEXT = 0
    MEMORY = 1
    THOUGHT = 2
    ACTION = 3
    OTHER = 4


class Ending(StrEnum):
    """Why a trajectory ended (specification section 4)."""

    ANSWERED = "answered"
    MAX_ROUNDS = "max_rounds"
    RESPONSE_BUDGET = "response_budget"
    CONTEXT_BUDGET = "context_budget"
    NO_ACTION = "no_action"


@dataclass(frozen=True)
class Objective:
    """One question with its gold answers (aliases; the first is the canonical one)."""

    question: str
    golds: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """One row of a data set: one or more objectives.

    ``corpus`` names the retriever that the task's tools search. ``metadata`` is carried along for
    reports (rows that were composed, the chain of facts in the generated world) and never read by
    training.
    """

    id: str
    objectives: tuple[Objective, ...]
    source: str = ""
    corpus: str = "default"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """The objectives' questions joined with ``"; "`` (specification section 5)."""
        return "; ".join(objective.question for objective in self.objectives)

    @property
    def gold(self) -> str:
        """The first alias of each objective joined with ``"; "`` (specification section 6)."""
        return "; ".join(objective.golds[0] for objective in self.objectives)


@dataclass
class TokenSequence:
    """Parallel lists, one entry per token.

    ``mask`` is 1 on policy tokens. ``logprobs`` are the engine's log-probabilities of policy
    tokens, ``None`` elsewhere. ``kinds`` holds a ``SpanKind`` per token. ``advantages`` is ``None``
    until the sequence has been scored. ``old_logprobs`` (0 off policy tokens) are the policy's own
    at the start of the epoch; they are needed, and present, only with several updates per epoch.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    kinds: list[SpanKind] = field(default_factory=list)
    advantages: list[float] | None = None
    old_logprobs: list[float] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def policy_tokens(self) -> int:
        return sum(self.mask)

    def append_context(self, ids: list[int]) -> None:
        """Appends tokens that the model did not sample."""
        self.ids.extend(ids)
        self.mask.extend([0] * len(ids))
        self.logprobs.extend([None] * len(ids))
        self.kinds.extend([SpanKind.CONTEXT] * len(ids))

    def append_policy(self, ids: list[int], logprobs: list[float], kinds: list[SpanKind]) -> None:
        """Appends sampled tokens. Raises ``ValueError`` when the lists differ in length."""
        if not len(ids) == len(logprobs) == len(kinds):
            raise ValueError(
                f"{len(ids)} ids, {len(logprobs)} log-probabilities and {len(kinds)} span kinds "
                "do not belong together"
            )
        self.ids.extend(ids)
        self.mask.extend([1] * len(ids))
        self.logprobs.extend(logprobs)
        self.kinds.extend(kinds)


@dataclass
class Round:
    """One generated turn and the tool result that follows it.

    ``sequence`` is the index of its token sequence in the trajectory. ``snapshot_length`` counts
    the tokens of that sequence before the round, generation prompt included and a prefilled
    ``<mem>`` not. The round's own tokens are ``[start, end)`` (a prefilled ``<mem>`` is part of
    them and carries mask 0). ``memory_span`` is the token range from ``<mem>`` through ``</mem>``,
    ``None`` without a complete memory. ``result_tokens`` counts the tokens with which the next
    round's context ends: the observation as it was first shown, with its chat-template glue.
    ``given`` is what the context held besides question, rounds and results: what a summary or a
    retrieval memory brought. ``p_full`` and ``kept_full`` stay ``None`` with
    ``scoring.baseline=previous``, ``p_previous`` with ``history``.
    """

    number: int
    sequence: int
    snapshot_length: int
    start: int
    end: int
    text: str
    mem: str | None = None
    think: str | None = None
    action: str | None = None
    argument: str | None = None
    broken_rules: list[int] = field(default_factory=list)
    memory_span: tuple[int, int] | None = None
    observation: str | None = None
    observation_short: str | None = None
    result_tokens: int = 0
    given: str | None = None
    tool_failed: bool = False
    p_full: float | None = None
    p_mem: float | None = None
    p_previous: float | None = None
    kept_full: float | None = None
    kept_mem: float | None = None
    memory_reward: float | None = None
    memory_advantage: float | None = None

    @property
    def is_scored(self) -> bool:
        """True for a round after the first that holds a memory (specification section 1)."""
        return self.number > 1 and self.memory_span is not None

    @property
    def memory_tokens(self) -> int:
        return 0 if self.memory_span is None else self.memory_span[1] - self.memory_span[0]


@dataclass
class Trajectory:
    """One attempt at a task.

    ``repeated_rounds`` counts the rounds in which the engine was not asked, because the same
    context had come before (``AgentSettings.reuse_repeats``).
    """

    task: Task
    epoch: int
    sample: int
    prompt_length: int
    sequences: list[TokenSequence] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ending: Ending | None = None
    answer: str | None = None
    format_valid: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    outcome_advantage: float | None = None
    total_tokens: int = 0
    peak_tokens: int = 0
    tool_calls: int = 0
    tool_failures: int = 0
    tool_errors: int = 0
    repeated_rounds: int = 0

    @property
    def name(self) -> str:
        """How errors and files name this trajectory."""
        return f"task {self.task.id}, epoch {self.epoch}, sample {self.sample}"

    @property
    def policy_tokens(self) -> int:
        return sum(sequence.policy_tokens for sequence in self.sequences)

    def scored_rounds(self) -> Iterator[Round]:
        """The rounds that get a memory reward."""
        return (r for r in self.rounds if r.is_scored)
