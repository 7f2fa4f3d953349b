"""One trajectory as a state machine (specification section 4).

An agent is told what the engine sampled and what a tool returned, and says what it wants next: a
generation, a tool call, or nothing more. It runs no thread and owns no engine, so that every limit
can be tested without either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mempo.agent.baseline_windows import SummaryWindow, open_window
from mempo.agent.conversation import Conversation
from mempo.agent.observations import Shown, show, show_text
from mempo.agent.protocol import ANSWER_TAG, DEFAULT_PROTOCOL, MEMORY_OPEN, Protocol
from mempo.agent.reading import Reader
from mempo.agent.repeats import GenerationRequest, Sampled, SeenContexts
from mempo.agent.settings import AgentSettings as AgentSettings
from mempo.agent.tools import ToolResult, ToolSession
from mempo.agent.windows import Opening, ShownTurn
from mempo.config.contexts import shows_everything, writes_memory
from mempo.engine.interface import Messages
from mempo.trajectory import Ending, Round, SpanKind, TokenSequence, Trajectory


def no_action_feedback(protocol: Protocol) -> str:
    """What a round without an action is told (``on_no_action: feedback``)."""
    return f"No action was found. Write exactly one of {protocol.one_action} and close it."


NO_ACTION_FEEDBACK = no_action_feedback(DEFAULT_PROTOCOL)


@dataclass(frozen=True)
class Observed:
    """A tool's result as the context holds it: its texts, and the ids of the whole one with the
    chat template's glue."""

    result: ToolResult
    shown: Shown
    ids: list[int]


def tool_result(observed: Observed | ToolResult) -> ToolResult:
    """What the tool gave, laid out or not."""
    return observed.result if isinstance(observed, Observed) else observed


class Agent:
    """Drives one trajectory from prompt to ending.

    After ``receive`` or ``observe``, ``pending_call`` holds the tool call to make, or ``None``;
    then ``next_request`` gives the next generation, or ``None`` when the trajectory has ended. A
    request is answered by ``recall``, or by the engine and ``receive``. ``prompt`` is the text of
    ``prompt_ids`` between the chat template's marks, the question alone where it is not given.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        prompt_ids: list[int],
        conversation: Conversation,
        session: ToolSession,
        settings: AgentSettings,
        max_model_len: int,
        prompt: str | None = None,
    ) -> None:
        self.trajectory = trajectory
        self.session = session
        self.pending_call: tuple[str, str] | None = None
        self._conversation = conversation
        self._has_memory = writes_memory(settings.context)
        self._reader = Reader(conversation, conversation.protocol.with_memory(self._has_memory))
        self._settings = settings
        self._max_model_len = max_model_len
        text = trajectory.task.question if prompt is None else prompt
        opening = Opening(trajectory.task.question, text, prompt_ids)
        self._window = open_window(opening, self._reader, settings)
        self._turns: list[ShownTurn] = []
        self._summarizing = False
        # A context that shows everything grows, and never comes back.
        reuses = settings.reuse_repeats and not shows_everything(settings.context)
        self._seen = SeenContexts() if reuses else None
        self._request: GenerationRequest | None = None
        self._requests = 0
        self._response_tokens = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._closed = False
        self._begin_round()

    # What the loop calls

    def next_request(self) -> GenerationRequest | None:
        """The generation to run now, or ``None`` when the trajectory has ended."""
        if self.trajectory.ending is not None:
            return None
        allowed, limit = self._allowance()
        if allowed <= 0:
            self._end_round(limit)
            return self.next_request()  # After feedback another round follows.
        self._requests += 1
        prompt = [*self._sequence.ids, *self._prefill, *self._ids]
        self._request = GenerationRequest(prompt, allowed, self._requests)
        return self._request

    def messages(self) -> Messages:
        """The context of the round as chat messages, for engines that lay them out themselves."""
        return self._window.messages(self._turns)

    def recall(self) -> bool:
        """Takes what was sampled for the last request's context before. ``False`` where the engine
        has to be asked."""
        if self._seen is None or self._request is None:
            return False
        sampled = self._seen.recall(self._request)
        if sampled is None:
            return False
        self._take(sampled)
        return True

    def receive(
        self, ids: list[int], logprobs: list[float], finish_reason: Literal["stop", "length"]
    ) -> None:
        """Takes what was sampled for the last request."""
        if len(ids) != len(logprobs):
            raise ValueError(
                f"{self.trajectory.name}, round {self._number}: the engine returned {len(ids)} ids "
                f"and {len(logprobs)} log-probabilities"
            )
        sampled = Sampled(ids, logprobs, finish_reason)
        if self._seen is not None and self._request is not None:
            self._seen.remember(self._request, sampled)
        self._asked_engine = True
        self._take(sampled)

    def call_tool(self) -> Observed:
        """Makes ``pending_call`` and lays out its result. The trajectory stays as it is, so that
        this may run on another thread: cutting and tokenizing take milliseconds."""
        assert self.pending_call is not None
        return self._lay_out(self.session.call(*self.pending_call))

    def observe(self, observed: Observed | ToolResult) -> None:
        """Takes what ``call_tool`` gave, or a result that is still to be laid out."""
        if isinstance(observed, ToolResult):
            observed = self._lay_out(observed)
        result, shown = observed.result, observed.shown
        self.pending_call = None
        current = self.trajectory.rounds[-1]
        current.tool_failed = result.failed
        self.trajectory.tool_failures += int(result.failed)
        self.trajectory.tool_errors += int(result.error is not None)
        if self._continue_with(shown, observed.ids):
            only_short = self._settings.context == "memory" and self._settings.newest == "short"
            self.session.mark_read(
                result, shown.short_characters if only_short else shown.characters
            )

    def _lay_out(self, result: ToolResult) -> Observed:
        shown = show(result, self._conversation, self._settings.max_observation_tokens)
        return Observed(result, shown, self._ids_of(shown))

    def _ids_of(self, shown: Shown) -> list[int]:
        """Those of the whole text; the reader keeps them, and those of the short one, for the
        window."""
        whole, _ = (
            self._reader.observation_ids(text, self._closed) for text in (shown.whole, shown.short)
        )
        return whole

    # Rounds

    @property
    def _number(self) -> int:
        return len(self.trajectory.rounds) + 1

    @property
    def _sequence(self) -> TokenSequence:
        return self.trajectory.sequences[-1]

    def _take(self, sampled: Sampled) -> None:
        """Adds what was sampled to the round, which ends with it or goes on."""
        ids, stopped = sampled.ids, sampled.finish_reason == "stop"
        context = len(self._sequence) + len(self._prefill) + len(self._ids)
        self.trajectory.total_tokens += context + len(ids)
        self.trajectory.peak_tokens = max(self.trajectory.peak_tokens, context + len(ids))
        _, limit = self._allowance()
        self._ids.extend(ids)
        self._logprobs.extend(sampled.logprobs)
        self._closed = bool(ids) and ids[-1] in self._conversation.end_ids
        unfinished = stopped and not self._closed and bool(ids) and not self._summarizing
        if unfinished and self._reader.inside_open_body([*self._prefill, *self._ids]):
            return  # The stop text is part of an unclosed memory or thought: go on generating.
        self._end_round(None if stopped else limit)

    def _begin_round(self) -> None:
        """Lays out the context of the next round."""
        self._turns = self._window.turns()
        if self.trajectory.sequences and self._window.grows:
            self._sequence.append_context(self._turns[-1].ids)
        else:
            self.trajectory.sequences.append(TokenSequence())
            self._sequence.append_context([token for turn in self._turns for token in turn.ids])
        if self.trajectory.rounds:
            result = len(self._turns[-1].ids) if len(self._turns) > 1 else 0
            self.trajectory.rounds[-1].result_tokens = result
        self._ids, self._logprobs, self._closed = [], [], False
        self._asked_engine = False
        prefilled = self._settings.prefill_memory and self._has_memory and self._number > 1
        self._prefill = self._conversation.encode(MEMORY_OPEN) if prefilled else []

    def _allowance(self) -> tuple[int, Ending | None]:
        """How many tokens may still be sampled in this round, and the ending that the tightest
        limit leads to (``None``: the round's own limit, which ends no trajectory by itself). Of
        equal limits the one that ends the trajectory counts."""
        used = len(self._sequence) + len(self._prefill) + len(self._ids)
        settings = self._settings
        longest = settings.summary.max_tokens if self._summarizing else settings.max_round_tokens
        limits: list[tuple[int, Ending | None]] = [
            (
                self._settings.max_response_tokens - self._response_tokens - len(self._ids),
                Ending.RESPONSE_BUDGET,
            ),
            (self._max_model_len - used, Ending.CONTEXT_BUDGET),
            (longest - len(self._ids), None),
        ]
        return min(limits, key=lambda limit: limit[0])

    def _end_round(self, limit: Ending | None) -> None:
        """Writes the round into the trajectory and decides what follows."""
        if not self._ids:
            self.trajectory.ending = limit or Ending.NO_ACTION
            return
        if self._summarizing:
            self._end_summary()
            return
        current = self._write_round()
        if current.action == ANSWER_TAG:
            self.trajectory.answer = current.argument
            self.trajectory.ending = Ending.ANSWERED
        elif current.action is None and limit is not None:
            self.trajectory.ending = limit
        elif current.action is None and self._settings.on_no_action == "stop":
            self.trajectory.ending = Ending.NO_ACTION
        elif current.number >= self._settings.max_rounds:
            self.trajectory.ending = Ending.MAX_ROUNDS
        elif current.action is None:
            budget = self._settings.max_observation_tokens
            text = no_action_feedback(self._conversation.protocol)
            shown = show_text(text, text, self._conversation, budget)
            self._continue_with(shown, self._ids_of(shown))
        else:
            assert current.argument is not None
            self.trajectory.tool_calls += 1
            self.pending_call = (current.action, current.argument)

    def _write_round(self) -> Round:
        """Cuts the sampled ids at the end of the action and records spans, ids and text."""
        number, sequence = self._number, self._sequence
        snapshot_length = len(sequence)
        prefill = self._prefill
        if prefill and self._conversation.decode(self._ids).lstrip().startswith(MEMORY_OPEN):
            prefill = []  # The model wrote the tag itself: text and context hold one, not two.
        sequence.append_context(prefill)
        start = len(sequence) - len(prefill)
        reading = self._reader.read(prefill, self._ids, number)
        if reading.cut:
            self._closed = False
        parsed, memory, ids, rest = reading.parsed, reading.memory, reading.ids, reading.rest
        sequence.append_policy(ids, self._logprobs[: len(ids)], reading.kinds)
        sequence.append_context(rest)
        self._response_tokens += len(ids) + len(rest)
        current = Round(
            number=number,
            sequence=len(self.trajectory.sequences) - 1,
            snapshot_length=snapshot_length,
            start=start,
            end=len(sequence),
            text=parsed.text,
            mem=parsed.mem,
            think=parsed.think,
            action=parsed.action,
            argument=parsed.argument,
            broken_rules=list(parsed.broken_rules),
            memory_span=None if memory is None else (start + memory[0], start + memory[1]),
            given=self._window.given,
        )
        self.trajectory.rounds.append(current)
        self.trajectory.repeated_rounds += int(not self._asked_engine)
        self._window.add_round(reading, [*prefill, *ids, *rest])
        return current

    def _continue_with(self, shown: Shown, observation: list[int]) -> bool:
        """Appends an observation, or ends the trajectory when it does not fit. Whether it fits."""
        current = self.trajectory.rounds[-1]
        current.observation, current.observation_short = shown.whole, shown.short
        if self._response_tokens + len(observation) >= self._settings.max_response_tokens:
            self.trajectory.ending = Ending.RESPONSE_BUDGET
            return False
        self._response_tokens += len(observation)
        self._window.add_result(current.action or "feedback", shown, self._closed)
        if self._window.wants_summary:
            self._begin_summary()
        else:
            self._begin_round()
        self._check_room()
        return True

    def _check_room(self) -> None:
        if len(self._sequence) + len(self._prefill) >= self._max_model_len:
            self.trajectory.ending = Ending.CONTEXT_BUDGET

    # Summaries (``summary``): requests between two rounds

    def _begin_summary(self) -> None:
        """Lays out what a summary is written after, in a sequence of its own."""
        assert isinstance(self._window, SummaryWindow)
        self._summarizing = True
        self._turns = self._window.summary_turns()
        self.trajectory.sequences.append(TokenSequence())
        self._sequence.append_context([token for turn in self._turns for token in turn.ids])
        self._ids, self._logprobs, self._closed, self._prefill = [], [], False, []

    def _end_summary(self) -> None:
        """Takes the summary that was written; the next round sees it in place of what it tells."""
        assert isinstance(self._window, SummaryWindow)
        kinds = [SpanKind.OTHER] * len(self._ids)
        self._sequence.append_policy(self._ids, self._logprobs, kinds)
        self._response_tokens += len(self._ids)
        self._window.add_summary(self._conversation.decode(self._ids))
        self._summarizing = False
        self._begin_round()
        self._check_room()
