"""Short names for models and runs, for tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mempo.runtime.run_folder import MODEL_FOLDER


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
