"""A run folder as typed data. What is wrong in a file is told with its line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from yaml import YAMLError

from mempo.records.trajectory_lines import (
    TrajectoryLine,
    first_error,
    read_checked_lines,
    read_trajectories,
)
from mempo.runtime.errors import MempoError
from mempo.runtime.run_folder import (
    CONFIG_FILE,
    EVALUATION_FILE,
    METRICS_FILE,
    TRAJECTORIES_FILE,
)

_CHECKED = ConfigDict(extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True, config=_CHECKED)
class Settings:
    """What the page needs of the run's configuration. ``known`` is False where the folder has no
    configuration and the defaults are taken for granted."""

    algorithm: str = ""
    memory_weight: float = 1.0
    context: str = "full"
    known: bool = False


@dataclass(frozen=True)
class Run:
    """A run folder. ``missing`` names the files that it does not (yet) hold."""

    folder: Path
    metrics: list[dict[str, float]]
    trajectories: list[TrajectoryLine]
    evaluation: dict[str, Any]
    settings: Settings
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last two parts of the folder's path: runs are named by date and time."""
        return "/".join(self.folder.resolve().parts[-2:]).lstrip("/")


def read_run(folder: Path, *, waiting: bool = False) -> Run:
    """Reads a run folder; a half-written last line of a JSON-lines file is left out.

    With ``waiting`` a folder that holds nothing yet is an empty run. Raises ``MempoError`` when
    there is no such folder, when it is not one that ``train.py`` wrote, and for a line that cannot
    be read.
    """
    if not folder.is_dir():
        raise MempoError(f"{folder}: no such folder; name a run folder that train.py wrote")
    files = (METRICS_FILE, TRAJECTORIES_FILE, EVALUATION_FILE, CONFIG_FILE)
    missing = tuple(name for name in files if not (folder / name).is_file())
    if {METRICS_FILE, TRAJECTORIES_FILE} <= set(missing) and not waiting:
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise MempoError(
            f"{folder}: {METRICS_FILE} and {TRAJECTORIES_FILE} are missing (it holds {held}); "
            "name a run folder that train.py wrote and in which at least one epoch has ended"
        )
    return Run(
        folder=folder,
        metrics=(
            []
            if METRICS_FILE in missing
            else read_checked_lines(folder / METRICS_FILE, _METRICS, _finite)
        ),
        trajectories=(
            [] if TRAJECTORIES_FILE in missing else read_trajectories(folder / TRAJECTORIES_FILE)
        ),
        evaluation=_read_evaluation(folder / EVALUATION_FILE),
        settings=_read_settings(folder / CONFIG_FILE),
        missing=missing,
    )


def run_version(folder: Path) -> str:
    """Changes whenever the run has written something."""
    parts = []
    for name in (METRICS_FILE, TRAJECTORIES_FILE, EVALUATION_FILE):
        try:
            found = (folder / name).stat()
        except FileNotFoundError:
            parts.append("0")
        else:
            parts.append(f"{found.st_size}.{found.st_mtime_ns}")
    return "-".join(parts)


def _finite(record: dict[str, float]) -> None:
    if "epoch" not in record:
        raise ValueError("there is no epoch")
    for key, value in record.items():
        if not math.isfinite(value):
            raise ValueError(f"{key} is {value}")


_METRICS = TypeAdapter(dict[str, float])


def _read_evaluation(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise MempoError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise MempoError(f"{path}: one JSON object was expected")
    return found


def _read_settings(path: Path) -> Settings:
    if not path.is_file():
        return Settings()
    try:
        config = OmegaConf.load(path)
        found: Mapping[str, Any] = {
            "algorithm": OmegaConf.select(config, "algorithm.name"),
            "memory_weight": OmegaConf.select(config, "memory.weight"),
            "context": OmegaConf.select(config, "rollout.context"),
        }
        return Settings(
            **{key: value for key, value in found.items() if value is not None}, known=True
        )
    except ValidationError as error:
        raise MempoError(f"{path}: {first_error(error)}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise MempoError(f"{path}: {str(error).splitlines()[0]}") from None
