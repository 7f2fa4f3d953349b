"""Names: several in one that can be taken apart again, and short ones for tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

from mempo.runtime.run_folder import MODEL_FOLDER


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


def short_labels(models: Sequence[str]) -> list[str]:
    """The last parts of each path or hub name, as few as tell them apart. A ``model/`` inside a run
    folder is left out: the run is the name."""
    parts = [_parts(model) for model in models]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        labels = ["/".join(one[-depth:]) for one in parts]
        if len(set(labels)) == len(set(models)):
            return labels
    return list(models)


def _parts(model: str) -> tuple[str, ...]:
    parts = Path(model).parts
    return parts[:-1] if len(parts) > 1 and parts[-1] == MODEL_FOLDER else parts
