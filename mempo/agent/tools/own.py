"""Tools of one's own (docs/extending.md).

Whatever such a tool does, a call gives an observation: one that raises, hangs or gives no text is
told to the model in a sentence and counted (``mempo.agent.error_rate``), as a failed search is.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mempo.agent.tools.result import ToolResult, sentence, unreadable
from mempo.agent.tools.timed import TimeLimit, within
from mempo.trajectory import Task

EMPTY: Final = "The input of {tag} is empty. Write {argument}."
FAILED: Final = "The tool {tag} failed. Try another input."
TIMED_OUT: Final = "The tool {tag} took too long. Try another input."
NO_TEXT: Final = "The tool {tag} gave no text. Try another input."
UNREADABLE: Final = "What the tool {tag} gave is not valid text. Try another input."

_CAUSE_CHARS: Final = 500

Sessions = Callable[[Task], Callable[[str], object]]
"""What a tool is made into: for a trajectory's task, the function from a call's argument to its
text."""


class BadArgument(Exception):
    """A tool raises it for an argument that it cannot use. That is the model's own fault: its
    message is the observation, and no error is counted."""


@dataclass(frozen=True)
class OwnCall:
    """One trajectory's calls of a tool. ``inert`` takes tags and control marks out of what it
    gives, of which ``max_chars`` are kept and ``short_chars`` shown to later rounds (``None``: as
    many)."""

    tag: str
    argument: str
    call: Callable[[str], object]
    limit: TimeLimit
    inert: Callable[[str], str]
    max_chars: int
    short_chars: int | None = None

    def __call__(self, argument: str) -> ToolResult:
        argument = argument.strip()
        if not argument:
            return self._says(EMPTY, failed=True)
        try:
            given = within(self.limit, lambda: self.call(argument))
        except BadArgument as fault:
            return self._shown(str(fault), failed=True)
        except TimeoutError as error:
            return self._says(TIMED_OUT, error=self._cause(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - counted, and told when it stops
            return self._says(FAILED, error=self._cause(error))
        if isinstance(given, ToolResult):
            return self._shown(given.text, given.failed, given.error, given.short_text)
        if isinstance(given, str):
            return self._shown(given)
        kind = type(given).__name__
        return self._says(NO_TEXT, error=f"{self.tag}: it gave a {kind} where a text belongs")

    def _shown(
        self, text: str, failed: bool = False, error: str | None = None, short: str | None = None
    ) -> ToolResult:
        """As the context holds it; ``short`` is its own short text (``None``: the beginning)."""
        if (fault := unreadable(text, short or "")) is not None:
            return self._says(UNREADABLE, error=f"{self.tag}: what it gave is {fault}")
        if not text.strip():
            return self._says(NO_TEXT, failed=error is None, error=error)
        shown = self.inert(text[: self.max_chars])
        if short is None:
            return ToolResult(shown, shown[: self.short_chars], failed, error)
        return ToolResult(shown, self.inert(short[: self.max_chars]), failed, error)

    def _says(self, words: str, failed: bool = False, error: str | None = None) -> ToolResult:
        return sentence(words.format(tag=self.tag, argument=self.argument), failed, error)

    def _cause(self, error: BaseException) -> str:
        """What happened, and where in the tool's own file."""
        said = f"{self.tag}: {type(error).__name__}: {error}"[:_CAUSE_CHARS]
        frames = traceback.extract_tb(error.__traceback__)
        place = frames[-1] if frames and not isinstance(error, TimeoutError) else None
        return f"{said} ({Path(place.filename).name}, line {place.lineno})" if place else said
