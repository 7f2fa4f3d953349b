"""A run's ``metrics.jsonl`` and ``evaluation.json``, checked: a disk or a hand may have damaged
them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from mempo.records.trajectory_lines import LATEST, MOST, Number, read_checked_lines
from mempo.runtime.errors import MempoError
from mempo.runtime.run_files import read_json

_METRICS: Final = TypeAdapter(dict[str, Number])


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl``; a half-written last one is left out. Raises ``MempoError``
    with file and line for one that cannot be read."""
    return read_checked_lines(path, _METRICS, _has_epoch)


def _has_epoch(record: Mapping[str, float]) -> None:
    if "epoch" not in record:
        raise ValueError("there is no epoch")
    epoch = record["epoch"]
    if not 0 <= epoch < LATEST or epoch != int(epoch):
        raise ValueError(f"epoch is {epoch:g}")


def read_evaluation(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of ``evaluation.json``, by stage or model; empty where there is no such file.

    Raises ``MempoError`` where one is no object of figures.
    """
    if not path.is_file():
        return {}
    found = read_json(path)
    for name, entry in found.items():
        _check_figures(entry, path, name)
    return found


def _check_figures(value: Any, path: Path, name: str) -> None:
    """Figures are numbers, pairs of them, names, and objects of figures."""
    if not isinstance(value, dict):
        raise MempoError(f"{path}: {name} is no object of figures: repair or remove the file")
    for key, one in value.items():
        inner = f"{name}.{key}"
        if key == "context" and isinstance(one, str):
            continue
        if isinstance(one, dict) or key == "contexts":
            _check_figures(one, path, inner)
            for context in one if key == "contexts" else ():
                _check_figures(one[context], path, f"{inner}.{context}")
                for figure in ("exact_match", "total_tokens"):
                    if type(one[context].get(figure)) not in (int, float):
                        raise MempoError(
                            f"{path}: {inner}.{context}.{figure} is no number: repair or remove "
                            "the file"
                        )
            continue
        interval = isinstance(one, list) and name.endswith(".ci95")
        numbers = one if interval else [one]
        if not all(type(n) in (int, float) and abs(n) <= MOST for n in numbers):
            raise MempoError(f"{path}: {inner} is no figure: repair or remove the file")
