"""What reading a file dropped or guessed, counted, so that it is told and never passes silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Told:
    """Counts by what happened, each with the place where it happened first."""

    _first: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, place: str, count: int = 1) -> None:
        """``count`` more of ``what``, which goes on after "rows" (``"hold no title"``)."""
        self._first.setdefault(what, place)
        self._counts[what] = self._counts.get(what, 0) + count

    def update(self, other: Told) -> None:
        """Adds what another reading told."""
        for what, count in other._counts.items():
            self.add(what, other._first[what], count)

    def count(self, what: str) -> int:
        """How often ``what`` happened."""
        return self._counts.get(what, 0)

    def sentences(self) -> Iterator[str]:
        """One sentence for each thing, in the order of first sight."""
        for what, count in self._counts.items():
            yield f"{count} rows {what} (the first: {self._first[what]})"
