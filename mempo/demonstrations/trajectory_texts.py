"""Trajectories of a file as supervised texts, laid out as the rollout lays them out.

A trajectory is one text where a round sees all before it (``full``), and one text a round where it
sees what the memory context shows (``memory``, specification section 9). What is longer than the
model can read ends with its last whole round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import jinja2

from mempo.agent.context import AgentMemory
from mempo.agent.conversation import Conversation
from mempo.agent.observations import MORE_FOLLOWS, MORE_FOLLOWS_BRIEFLY
from mempo.agent.protocol import OBSERVATION_CLOSE, OBSERVATION_OPEN, parse_round
from mempo.config import ContextConfig
from mempo.demonstrations.demonstration import Demonstration, Turn
from mempo.demonstrations.encoding import TrainingText, encode_demonstration
from mempo.demonstrations.trajectory_files import HOW_TO_SKIP, SKIPPED
from mempo.demonstrations.trajectory_shapes import WrittenTrajectory
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told

_SYSTEM: Final = "bring another system message, which is not used (model.system_prompt is)"
_CUT: Final = "are longer than the limit (sft.max_tokens) and end with an earlier round"
_LEFT_OUT: Final = "hold no round within the limit (sft.max_tokens) and were left out"
_OBSERVATIONS_CUT: Final = (
    "hold an observation longer than rollout.max_observation_tokens, which was cut"
)


@dataclass(frozen=True)
class Layout:
    """How a run lays trajectories out. ``limit``: tokens of the longest text. ``short_chars``: what
    is left of a result behind the newest one, by the tool's tag (``retriever.short_chars``); of
    other tools all of it."""

    conversation: Conversation
    template: jinja2.Template
    max_observation_tokens: int
    limit: int
    context: Literal["full", "memory", "both"] = "full"
    memory_context: ContextConfig = field(default_factory=ContextConfig)
    short_chars: Mapping[str, int] = field(default_factory=lambda: {"access": 100})
    skip_bad_rows: bool = False


def trajectory_texts(
    trajectories: Iterable[WrittenTrajectory], layout: Layout, told: Told
) -> Iterator[TrainingText]:
    """The texts of each trajectory; ``told`` counts what was cut. Raises ``DataError`` for an
    assistant's turn that holds a control mark of the tokenizer, or counts it
    (``sft.skip_bad_rows``)."""
    for trajectory in trajectories:
        fault = _control_mark(trajectory, layout.conversation)
        if fault is not None and not layout.skip_bad_rows:
            raise DataError(f"{fault}. {HOW_TO_SKIP}")
        if fault is not None:
            told.add(SKIPPED, fault)
            continue
        if trajectory.system is not None and not _is_the_runs(trajectory.system, layout):
            told.add(_SYSTEM, trajectory.place)
        turns = _turns(trajectory, layout, told)
        for demonstration in _demonstrations(trajectory.question, turns, layout):
            text = encode_demonstration(
                demonstration,
                layout.conversation,
                layout.template,
                layout.max_observation_tokens,
                layout.conversation.protocol.memory,
            )
            kept = cut_at_round_end(text, layout.limit)
            if kept is None:
                told.add(_LEFT_OUT, trajectory.place)
                continue
            if kept is not text:
                told.add(_CUT, trajectory.place)
            yield kept


def cut_at_round_end(text: TrainingText, limit: int) -> TrainingText | None:
    """The text, or its beginning up to the last trained round that ends within ``limit`` tokens;
    ``None`` where there is none."""
    if len(text.ids) <= limit:
        return text
    for end in range(limit, 0, -1):
        if text.trained[end - 1] and not text.trained[end]:
            return TrainingText(text.ids[:end], text.trained[:end])
    return None


def _control_mark(trajectory: WrittenTrajectory, conversation: Conversation) -> str | None:
    """What is wrong with a trajectory whose rounds would be read as more than text."""
    tags = {f"<{slash}{tag}>" for tag in conversation.protocol.tags for slash in ("", "/")}
    marks = [mark.text for mark in conversation.inert.marks if mark.text not in tags]
    for number, one in enumerate(trajectory.rounds, start=1):
        mark = next((mark for mark in marks if mark in one.text), None)
        if mark is not None:
            return (
                f"{trajectory.place}: round {number} holds {mark}, a control mark of the model's "
                "tokenizer: take it out of the assistant's turn"
            )
    return None


def _is_the_runs(system: str, layout: Layout) -> bool:
    return system.strip() == (layout.conversation.system_prompt or "").strip()


def _turns(trajectory: WrittenTrajectory, layout: Layout, told: Told) -> list[Turn]:
    """Assistant's turns and observations in turn, as the rollout would have kept them."""
    conversation = layout.conversation
    read = partial(parse_round, protocol=conversation.protocol)
    turns: list[Turn] = []
    cut = False
    for number, one in enumerate(trajectory.rounds, start=1):
        # Nothing after an action is kept (specification section 2).
        turns.append(Turn("assistant", one.text[: read(one.text, number).action_end]))
        if one.observation is not None and number < len(trajectory.rounds):
            shown = conversation.inert(one.observation)
            wrapped = f"{OBSERVATION_OPEN}{shown}{OBSERVATION_CLOSE}"
            cut = cut or not conversation.fits(wrapped, layout.max_observation_tokens)
            turns.append(Turn("observation", shown, trained=False))
    if cut:
        told.add(_OBSERVATIONS_CUT, trajectory.place)
    return turns


def _demonstrations(
    question: str, turns: Sequence[Turn], layout: Layout
) -> Iterator[Demonstration]:
    if layout.context != "memory":
        yield Demonstration(question, tuple(turns), "trajectory")
    if layout.context == "full":
        return
    first = 0 if layout.context == "memory" else 1  # round 1 sees the same in both
    for round_index in range(first, (len(turns) + 1) // 2):
        yield Demonstration(question, tuple(_seen(turns[: 2 * round_index + 1], layout)), "round")


def _seen(turns: Sequence[Turn], layout: Layout) -> Iterator[Turn]:
    """What the round that ``turns`` end with is shown in the memory context, and the round."""
    memory = AgentMemory()
    memory.add_prompt("")
    read = partial(parse_round, protocol=layout.conversation.protocol)
    for before, turn in zip([None, *turns], turns[:-1], strict=False):
        if turn.role == "assistant":
            memory.add_generation(turn.text)
        else:
            action = read(before.text, 2).action if before is not None else None
            characters = layout.short_chars.get(action or "")
            short = None if characters is None else _short(turn.text, characters)
            memory.add_result(action or "feedback", turn.text, short)
    settings = layout.memory_context
    for index in memory.kept_records(settings.keep_steps)[1:]:
        turn = turns[index - 1]
        text = memory.shown_text(index, settings.newest) if turn.role == "observation" else ""
        yield Turn(turn.role, text or turn.text, trained=False)
    yield turns[-1]


def _short(page: str, characters: int) -> str:
    """What later rounds see of an opened page (specification section 3)."""
    for sentence in (MORE_FOLLOWS, MORE_FOLLOWS_BRIEFLY):
        page = page.removesuffix(f"\n{sentence}")
    return page[:characters]
