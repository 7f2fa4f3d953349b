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


class Opened:
    """A tool's session for one trajectory, opened by the first call and within its time: one that
    cannot be opened is a failed call, and the next call tries again."""

    def __init__(self, sessions: Sessions, task: Task) -> None:
        self._sessions = sessions
        self._task = task
        self._call: Callable[[str], object] | None = None

    def __call__(self, argument: str) -> object:
        if self._call is None:
            self._call = self._sessions(self._task)
        return self._call(argument)


class BadArgument(Exception):
    """A tool raises it for an argument that it cannot use. That is the model's own fault: its
    message is the observation, and no error is counted."""


@dataclass(frozen=True)
class _Raised:
    error: BaseException


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
            given = within(self.limit, lambda: self._given(argument))
        except TimeoutError as error:
            given = _Raised(error)
        if isinstance(given, _Raised):
            return self._told(given.error)
        if isinstance(given, str):
            return self._shown(given)
        if not isinstance(given, ToolResult):
            return self._no_text(given)
        texts: tuple[object, ...] = (given.text, given.short_text)
        for text in texts:
            if not isinstance(text, str):  # nothing but its annotation holds a tool to it
                return self._no_text(text)
        cause = None if given.error is None else _words(given.error)
        return self._shown(given.text, given.failed, cause, given.short_text)

    def _given(self, argument: str) -> object:
        """What the tool gives or raises. Nothing that it raises leaves its thread, so that an
        interrupt of the program is not taken for one of the tool."""
        try:
            return self.call(argument)
        except BaseException as error:  # noqa: BLE001 - counted, and told when it stops
            return _Raised(error)

    def _told(self, error: BaseException) -> ToolResult:
        if isinstance(error, BadArgument):
            return self._shown(_words(error), failed=True)
        words = TIMED_OUT if isinstance(error, TimeoutError) else FAILED
        return self._says(words, error=self._cause(error))

    def _no_text(self, given: object) -> ToolResult:
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
        said = f"{self.tag}: {type(error).__name__}: {_words(error)}"[:_CAUSE_CHARS]
        frames = traceback.extract_tb(error.__traceback__)
        place = frames[-1] if frames and not isinstance(error, TimeoutError) else None
        return f"{said} ({Path(place.filename).name}, line {place.lineno})" if place else said


def _words(said: object) -> str:
    """``str``, of which a tool's own exceptions may have a faulty one."""
    try:
        return str(said)
    except Exception as error:  # noqa: BLE001 - the call's own error is the one to tell
        return f"(its text cannot be read: {type(error).__name__})"
