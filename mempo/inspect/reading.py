"""A run folder as typed data. What is wrong in a file is told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from mempo.agent.protocol import DEFAULT_PROTOCOL
from mempo.records.run_config import check_section, read_config, section
from mempo.records.run_results import read_evaluation, read_metrics
from mempo.records.trajectory_lines import (
    Number,
    TrajectoryLine,
    first_error,
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
    memory_weight: Number = 1.0
    context: str = "full"
    tools: tuple[str, ...] = DEFAULT_PROTOCOL.tools
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
        metrics=[] if METRICS_FILE in missing else read_metrics(folder / METRICS_FILE),
        trajectories=(
            [] if TRAJECTORIES_FILE in missing else read_trajectories(folder / TRAJECTORIES_FILE)
        ),
        evaluation=read_evaluation(folder / EVALUATION_FILE),
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


def _tags(config: dict[str, Any], path: Path) -> list[Any] | None:
    """Those of the run's tools, ``None`` where it tells none."""
    if "tools" not in config:
        return None
    check_section(config, "tools", path)
    return [one.get("tag") if isinstance(one, dict) else one for one in config["tools"]]


def _read_settings(path: Path) -> Settings:
    if not path.is_file():
        return Settings()
    config = read_config(path)
    found: dict[str, Any] = {
        "algorithm": section(config, "algorithm", path).get("name"),
        "memory_weight": section(config, "memory", path).get("weight"),
        "context": section(config, "rollout", path).get("context"),
        "tools": _tags(config, path),
    }
    try:
        return Settings(
            **{key: value for key, value in found.items() if value is not None}, known=True
        )
    except ValidationError as error:
        raise MempoError(f"{path}: {first_error(error)}") from None
