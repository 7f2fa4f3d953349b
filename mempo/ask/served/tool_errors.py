"""Whether too many of one question's tool calls failed, by the rules of a run
(``mempo.agent.error_rate``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mempo.agent.error_rate import SHARED_LIMIT


class ToolErrors:
    """Counts one question's calls. ``own`` has setting and rate of each tool that is counted apart,
    by its tag (``Rollout.error_limits``); the others share ``shared``."""

    def __init__(self, shared: float, own: Mapping[str, tuple[str, float]]) -> None:
        self._limits: dict[str | None, tuple[str, float]] = {None: (SHARED_LIMIT, shared)}
        for tag, limit in own.items():
            self._limits[tag] = limit
        self._calls: Counter[str | None] = Counter()
        self._errors: Counter[str | None] = Counter()

    def count(self, tag: str, failed: bool) -> None:
        """One call of the tool ``tag``. ``failed``: for a reason that is not the model's own."""
        tool = tag if tag in self._limits else None
        self._calls[tool] += 1
        self._errors[tool] += failed

    @property
    def total(self) -> int:
        """The calls that failed."""
        return self._errors.total()

    @property
    def fault(self) -> str | None:
        """A sentence where a tool failed more often than it may."""
        for tool, (setting, rate) in self._limits.items():
            errors, calls = self._errors[tool], self._calls[tool]
            if errors > rate * calls:
                of_tool = "tool calls" if tool is None else f"calls of the tool {tool}"
                return (
                    f"{errors} of {calls} {of_tool} failed for a reason that is not the model's "
                    f"own, more than {setting}={rate:g} allows; the server's terminal names the "
                    "causes"
                )
        return None
