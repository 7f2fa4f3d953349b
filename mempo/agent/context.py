"""The context that a round sees at evaluation and in memory-context rollouts.

Specification section 9: the system message, the question, and the records after the second newest
tool result. What came earlier reaches the model only through the memories that it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mempo.agent.protocol import MEMORY_OPEN

KeepSteps = int | Literal["all"]
Newest = Literal["full", "short"]

_DOUBLED = re.compile(rf"{MEMORY_OPEN}(?:\s*{MEMORY_OPEN})+")


@dataclass(frozen=True)
class Record:
    """One entry of the history.

    ``kind`` is ``prompt``, ``generation``, or the name of the tool that gave a result.
    ``short_text`` is what a result shrinks to once it is no longer the newest.
    """

    role: Literal["user", "assistant"]
    kind: str
    text: str
    short_text: str
    is_result: bool = False


class AgentMemory:
    """The records of one trajectory, in order: the prompt, each generation, each tool result.

    ``system_prompt`` ``None`` leaves the system message out.
    """

    def __init__(self, system_prompt: str | None = "You are a helpful assistant.") -> None:
        self.system_prompt = system_prompt
        self._records: list[Record] = []

    @property
    def records(self) -> tuple[Record, ...]:
        """All records; ``kept_records`` gives indices into it."""
        return tuple(self._records)

    def add_prompt(self, text: str) -> None:
        """Adds the user turn with the instructions and the question. Raises ``ValueError`` when
        there is one already."""
        if self._records:
            raise ValueError("the prompt is the first record, and there is exactly one")
        self._records.append(Record("user", "prompt", text, text))

    def add_generation(self, text: str) -> None:
        """Adds a round's whole text, the prefilled ``<mem>`` included where there was one.

        The text is kept exactly as it is, with one exception: a model that answers a prefilled
        ``<mem>`` with a ``<mem>`` of its own gives a text that opens with the tag twice, and the
        record keeps one (specification section 9).
        """
        self._require_prompt()
        text = without_doubled_memory_tag(text)
        self._records.append(Record("assistant", "generation", text, text))

    def add_result(self, kind: str, text: str, short_text: str | None = None) -> None:
        """Adds a tool result, already wrapped in ``<information>``.

        ``kind`` names the tool. ``short_text`` stands for the result once a newer one has come;
        ``None`` keeps the whole text.
        """
        self._require_prompt()
        short = text if short_text is None else short_text
        self._records.append(Record("user", kind, text, short, is_result=True))

    def kept_records(self, keep_steps: KeepSteps = 1) -> list[int]:
        """Indices into ``records`` of what the next round sees, ascending; the prompt (0) always.

        ``keep_steps: n`` keeps what comes after the (n + 1)-th newest tool result, ``"all"`` keeps
        everything. Raises ``ValueError`` for n below 1.
        """
        self._require_prompt()
        first = 1
        if keep_steps != "all":
            if keep_steps < 1:
                raise ValueError(f"keep_steps={keep_steps}: it must be at least 1, or all")
            results = [i for i, record in enumerate(self._records) if record.is_result]
            if len(results) > keep_steps:
                first = results[-keep_steps - 1] + 1
        return [0, *range(first, len(self._records))]

    def shown_text(self, index: int, newest: Newest = "full") -> str:
        """The text under which record ``index`` appears in the context now.

        The newest tool result is shown whole (``newest="full"``) or by its short text
        (``"short"``), older ones by their short text, prompt and generations whole.
        """
        if newest not in ("full", "short"):
            raise ValueError(f"newest={newest!r}: it must be full or short")
        record = self._records[index]
        later = self._records[index + 1 :]
        is_newest = record.is_result and not any(other.is_result for other in later)
        return record.text if is_newest and newest == "full" else record.short_text

    def messages(self, newest: Newest = "full", keep_steps: KeepSteps = 1) -> list[dict[str, str]]:
        """The next round's context as chat messages, ``{"role", "content"}`` each."""
        shown = [(i, self.shown_text(i, newest)) for i in self.kept_records(keep_steps)]
        return self._as_messages(shown)

    def whole_history(self) -> list[dict[str, str]]:
        """Everything so far as chat messages, every tool result whole."""
        return self._as_messages((i, record.text) for i, record in enumerate(self._records))

    def _as_messages(self, shown: Iterable[tuple[int, str]]) -> list[dict[str, str]]:
        kept = [{"role": self._records[i].role, "content": text} for i, text in shown]
        if self.system_prompt is None:
            return kept
        return [{"role": "system", "content": self.system_prompt}, *kept]

    def _require_prompt(self) -> None:
        if not self._records:
            raise ValueError("there is no prompt yet: call add_prompt first")


def without_doubled_memory_tag(text: str) -> str:
    """The text with the run of ``<mem>`` that it opens with cut down to one."""
    return _DOUBLED.sub(MEMORY_OPEN, text, count=1) if _DOUBLED.match(text) else text
