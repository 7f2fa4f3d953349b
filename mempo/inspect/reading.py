"""A run folder as typed data. What is wrong in a file is told with its line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from yaml import YAMLError

from mempo.errors import MempoError
from mempo.run_files import read_lines

METRICS_FILE = "metrics.jsonl"
TRAJECTORIES_FILE = "trajectories.jsonl"
EVALUATION_FILE = "evaluation.json"
CONFIG_FILE = ".hydra/config.yaml"

_CHECKED = ConfigDict(extra="ignore", allow_inf_nan=False)
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, config=_CHECKED)
class RoundLine:
    """A round of ``trajectories.jsonl``; ``None`` is what was never computed."""

    number: int
    text: str
    mem: str | None = None
    action: str | None = None
    argument: str | None = None
    observation: str | None = None
    tool_failed: bool = False
    broken_rules: list[int] = field(default_factory=list)
    memory_tokens: int = 0
    p_full: float | None = None
    p_mem: float | None = None
    memory_reward: float | None = None
    memory_advantage: float | None = None


@dataclass(frozen=True, slots=True, config=_CHECKED)
class TrajectoryLine:
    """A line of ``trajectories.jsonl`` (``mempo.records.trajectory_record``)."""

    epoch: int
    task: str
    sample: int
    rounds: list[RoundLine]
    source: str = ""
    question: str = ""
    golds: list[list[str]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    ending: str | None = None
    answer: str | None = None
    format_valid: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    outcome_advantage: float | None = None
    total_tokens: int = 0
    peak_tokens: int = 0
    policy_tokens: int = 0
    tool_calls: int = 0
    tool_failures: int = 0
    tool_errors: int = 0

    @property
    def memory_reward(self) -> float | None:
        """Mean memory reward of the scored rounds, ``None`` without any."""
        rewards = [one.memory_reward for one in self.rounds if one.memory_reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


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
        metrics=_read_records(folder / METRICS_FILE, _METRICS),
        trajectories=_read_records(folder / TRAJECTORIES_FILE, _TRAJECTORY),
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


def _finite(record: dict[str, float]) -> dict[str, float]:
    if "epoch" not in record:
        raise ValueError("there is no epoch")
    for key, value in record.items():
        if not math.isfinite(value):
            raise ValueError(f"{key} is {value}")
    return record


_METRICS = TypeAdapter(dict[str, float])
_TRAJECTORY = TypeAdapter(TrajectoryLine)


def _read_records(path: Path, kind: TypeAdapter[_Record]) -> list[_Record]:
    if not path.is_file():
        return []
    records: list[_Record] = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = kind.validate_python(line)
            if isinstance(record, dict):
                _finite(record)
        except ValidationError as error:
            raise MempoError(f"{path}, line {number}: {_first_error(error)}") from None
        except ValueError as error:
            raise MempoError(f"{path}, line {number}: {error}") from None
        records.append(record)
    return records


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the line"
    return f"{where}: {first['msg']}"


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
        raise MempoError(f"{path}: {_first_error(error)}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        raise MempoError(f"{path}: {str(error).splitlines()[0]}") from None
