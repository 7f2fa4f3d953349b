"""Several names in one, which can be taken apart again in one way only."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote


def join_names(separator: str, names: Iterable[object]) -> str:
    """The names with ``separator``, one ASCII character, between them.

    Where it stands in a name it is written as ``%`` and its two hexadecimal digits, and so is ``%``
    itself: names with neither stay as they are.
    """
    code = f"%{ord(separator):02X}"
    return separator.join(str(n).replace("%", "%25").replace(separator, code) for n in names)


def split_names(separator: str, joined: str) -> list[str]:
    """The names that ``join_names`` joined (at least one)."""
    return [unquote(name) for name in joined.split(separator)]
