"""What a memory changed against the one before it, word by word."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Final, Literal

Change = Literal["same", "added", "removed"]

_WORDS: Final = re.compile(r"\S+\s*")


def memory_difference(before: str, after: str) -> list[tuple[Change, str]]:
    """Pieces that, without the removed ones, read as ``after`` (outer white space left out).

    Words are compared without the white space behind them. Where words were replaced, what was
    removed comes first.
    """
    old, new = _WORDS.findall(before.strip()), _WORDS.findall(after.strip())
    matcher = SequenceMatcher(None, [w.rstrip() for w in old], [w.rstrip() for w in new])
    pieces: list[tuple[Change, str]] = []
    for kind, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(new[new_start:new_end])))
            continue
        if old_end > old_start:
            pieces.append(("removed", "".join(old[old_start:old_end])))
        if new_end > new_start:
            pieces.append(("added", "".join(new[new_start:new_end])))
    return pieces
