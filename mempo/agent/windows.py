"""What a round is shown of its trajectory, as chat turns with their token ids (sections 4 and 9).

One class for each way of showing the past; those of the baselines are in ``baseline_windows``. Ids
that the model sampled are never tokenized again: a turn that is shown whole has its own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mempo.agent.context import AgentMemory
from mempo.agent.conversation import Conversation
from mempo.agent.observations import Shown
from mempo.agent.reading import Reader, Reading
from mempo.agent.settings import AgentSettings
from mempo.engine.interface import Messages


@dataclass(frozen=True)
class ShownTurn:
    """One chat turn of a context; ``ids`` hold it with the template's glue after it."""

    role: Literal["user", "assistant"]
    text: str
    ids: list[int]


@dataclass(frozen=True)
class _RecordIds:
    """Token ids of one record of the agent's memory, whole and in its short form."""

    whole: list[int]
    short: list[int]


@dataclass(frozen=True)
class Opening:
    """What a trajectory begins with. ``ids`` hold ``text``, the instructions with the question,
    between the chat template's marks."""

    question: str
    text: str
    ids: list[int]


class Window:
    """The past of one trajectory, all of which every round sees.

    ``given`` is what the newest context holds that is neither question, round nor result.
    """

    given: str | None = None

    def __init__(self, opening: Opening, reader: Reader, settings: AgentSettings) -> None:
        self.settings = settings
        self.reader = reader
        self.memory = AgentMemory(self.conversation.system_prompt)
        self.memory.add_prompt(opening.text)
        self._ids = [_RecordIds(opening.ids, opening.ids)]

    @property
    def conversation(self) -> Conversation:
        return self.reader.conversation

    @property
    def grows(self) -> bool:
        """Whether the next round's context is the last one, its round and one more turn."""
        return True

    @property
    def wants_summary(self) -> bool:
        """Whether a summary has to be written before the next round (``SummaryWindow``)."""
        return False

    def add_round(self, reading: Reading, ids: list[int]) -> None:
        """A round as it was written, with all its ids, those of a prefilled tag included."""
        self.memory.add_generation(reading.parsed.text)
        self._ids.append(_RecordIds(ids, ids))

    def add_result(self, kind: str, shown: Shown, closed: bool) -> None:
        """A result; ``closed`` as in ``Conversation.observation_ids``."""
        self.memory.add_result(kind, shown.whole, shown.short)
        whole, short = (self._observed(text, closed) for text in (shown.whole, shown.short))
        self._ids.append(_RecordIds(whole, short))

    def turns(self) -> list[ShownTurn]:
        """The next round's context, without the system message: at least the question."""
        return self._whole(range(len(self._ids)))

    def messages(self, turns: Sequence[ShownTurn]) -> Messages:
        """Turns as chat messages, for engines that lay them out themselves."""
        system = self.conversation.system_prompt
        first = [] if system is None else [{"role": "system", "content": system}]
        return [*first, *({"role": turn.role, "content": turn.text} for turn in turns)]

    def _observed(self, text: str, closed: bool) -> list[int]:
        return self.reader.observation_ids(text, closed)

    def _whole(self, indices: Sequence[int]) -> list[ShownTurn]:
        records = self.memory.records
        return [ShownTurn(records[i].role, records[i].text, self._ids[i].whole) for i in indices]


class MemoryWindow(Window):
    """The records that specification section 9 keeps."""

    @property
    def grows(self) -> bool:
        return False

    def turns(self) -> list[ShownTurn]:
        return [self._shown(i) for i in self.memory.kept_records(self.settings.keep_steps)]

    def _shown(self, index: int) -> ShownTurn:
        record, ids = self.memory.records[index], self._ids[index]
        text = self.memory.shown_text(index, self.settings.newest)
        return ShownTurn(record.role, text, ids.whole if text == record.text else ids.short)
