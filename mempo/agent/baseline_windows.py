"""What a round of the baselines is shown, and which window a context has (section 9).

``mem1`` follows MEM1 (arXiv 2506.15841), whose rounds see the question, the last internal state and
the newest result; its code shows the last query too, as the context ``memory`` does here.
"""

from __future__ import annotations

from typing import Final

from mempo.agent.context import without_doubled_memory_tag
from mempo.agent.conversation import Conversation
from mempo.agent.observations import Shown
from mempo.agent.protocol import MEMORY_TAG, OBSERVATION_CLOSE, OBSERVATION_OPEN
from mempo.agent.reading import Reader, Reading
from mempo.agent.recalled_pieces import PieceStore, listed
from mempo.agent.settings import AgentSettings
from mempo.agent.windows import MemoryWindow, Opening, ShownTurn, Window
from mempo.config.contexts import ContextName

SUMMARY_REQUEST: Final = (
    "Summarize what has been found so far and is needed to answer the question, in short plain "
    "sentences. Write the summary and nothing else: what stands above will not be shown again."
)
SUMMARY_HEADING: Final = "Summary of the earlier rounds:"


class Mem1Window(Window):
    """The question, the last memory that was written, and the newest result: neither thought and
    action of a round nor the result before.

    Where no memory was written yet, the assistant's turn between question and result is empty.
    """

    def __init__(self, opening: Opening, reader: Reader, settings: AgentSettings) -> None:
        super().__init__(opening, reader, settings)
        self._last_memory = ShownTurn("assistant", "", [])

    @property
    def grows(self) -> bool:
        return False

    def add_round(self, reading: Reading, ids: list[int]) -> None:
        super().add_round(reading, ids)
        written = _memory_turn(self.conversation, reading, ids)
        self._last_memory = written or self._last_memory

    def add_result(self, kind: str, shown: Shown, closed: bool) -> None:
        # Its turn is cut behind the memory, before an end-of-turn mark of the model's own.
        super().add_result(kind, shown, closed=False)

    def turns(self) -> list[ShownTurn]:
        question, *rest = self._whole(range(len(self._ids)))
        return [question, self._last_memory, rest[-1]] if rest else [question]


class RetrievalWindow(Window):
    """The question, the newest round and its result, and before the result the best pieces of what
    was seen before.

    All that came before the newest round is in a store (``PieceStore``): results, and of each round
    its thought and its action. It is asked with the question and the newest round's thought and
    argument.
    """

    def __init__(self, opening: Opening, reader: Reader, settings: AgentSettings) -> None:
        super().__init__(opening, reader, settings)
        self._store = PieceStore(settings.retrieval_memory)
        self._question = opening.question
        self._written = self._result = self._wanted = ""
        self._closed = False

    @property
    def grows(self) -> bool:
        return False

    def add_round(self, reading: Reading, ids: list[int]) -> None:
        self._store.add(self._written)
        self._store.add(self._result)
        super().add_round(reading, ids)
        parsed = reading.parsed
        acted = None if parsed.argument is None else f"{parsed.action}: {parsed.argument}"
        said = " ".join(part for part in (parsed.think, acted) if part)
        self._written = self.conversation.inert(" ".join(said.split()))
        self._wanted = f"{self._question}\n{parsed.think or ''}\n{parsed.argument or ''}"

    def add_result(self, kind: str, shown: Shown, closed: bool) -> None:
        super().add_result(kind, shown, closed)
        self._closed = closed
        self._result = shown.whole.removeprefix(OBSERVATION_OPEN).removesuffix(OBSERVATION_CLOSE)

    def turns(self) -> list[ShownTurn]:
        question, *rest = self._whole(range(len(self._ids)))
        if not rest:
            return [question]
        *_, written, result = rest
        pieces = self._store.best(self._wanted, self._result)
        if not pieces:
            self.given = None
            return [question, written, result]
        budget = self.settings.max_observation_tokens
        self.given = self.conversation.wrap_observation(listed(pieces), budget)
        text = f"{self.given}\n{result.text}"
        return [question, written, ShownTurn("user", text, self._observed(text, self._closed))]


class SummaryWindow(Window):
    """The question with the newest summary, and all that came after it.

    The model writes a summary after every ``summary.every_rounds`` rounds, of the summary before
    and of what came after that (``summary_turns``).
    """

    def __init__(self, opening: Opening, reader: Reader, settings: AgentSettings) -> None:
        super().__init__(opening, reader, settings)
        self._prompt = opening.text
        self._opening = ShownTurn("user", opening.text, opening.ids)
        self._first = 1
        self._closed = False

    @property
    def grows(self) -> bool:
        return self._first < len(self._ids)

    @property
    def wants_summary(self) -> bool:
        rounds = sum(one.role == "assistant" for one in self.memory.records[self._first :])
        return rounds >= self.settings.summary.every_rounds

    def add_result(self, kind: str, shown: Shown, closed: bool) -> None:
        super().add_result(kind, shown, closed)
        self._closed = closed

    def turns(self) -> list[ShownTurn]:
        return [self._opening, *self._whole(range(self._first, len(self._ids)))]

    def summary_turns(self) -> list[ShownTurn]:
        """What the model is shown to write a summary after: the round's context, with the request
        behind the newest result."""
        *before, result = self.turns()
        text = f"{result.text}\n\n{SUMMARY_REQUEST}"
        return [*before, ShownTurn("user", text, self._observed(text, self._closed))]

    def add_round(self, reading: Reading, ids: list[int]) -> None:
        super().add_round(reading, ids)
        self.given = None

    def add_summary(self, text: str) -> None:
        """A summary, which stands for all before it. Its text is the model's, but not a round: tags
        and control marks in it are made inert."""
        self.given = self.conversation.inert(text.strip())
        opening = f"{self._prompt}\n\n{SUMMARY_HEADING}\n{self.given}"
        self._opening = ShownTurn("user", opening, self.conversation.prompt_ids(opening))
        self._first = len(self._ids)


def _memory_turn(conversation: Conversation, reading: Reading, ids: list[int]) -> ShownTurn | None:
    """A round's memory with its tags; of a token that runs past them the part up to there."""
    spans = reading.parsed.spans
    span = next((one for one in spans if one.tag == MEMORY_TAG and one.closed), None)
    if span is None or reading.memory is None:
        return None
    text = reading.parsed.text[span.start : span.end]
    own = ids[slice(*reading.memory)]
    decoded = conversation.decode(own)
    if decoded.startswith(text):
        cut = conversation.split_at_character(own, len(text))
        own = [*cut[0], *cut[1]]
    else:  # a token before the memory holds its first character
        own = conversation.encode(text)
    return ShownTurn("assistant", without_doubled_memory_tag(text), own)


def open_window(opening: Opening, reader: Reader, settings: AgentSettings) -> Window:
    """The window of ``settings.context``."""
    return _KINDS[settings.context](opening, reader, settings)


_KINDS: Final[dict[ContextName, type[Window]]] = {
    "full": Window,
    "react": Window,
    "memory": MemoryWindow,
    "mem1": Mem1Window,
    "summary": SummaryWindow,
    "retrieval_memory": RetrievalWindow,
}
