"""The lines of ``trajectories.jsonl`` as typed data. What is wrong in one is told with its number.

``train.py`` and ``evaluate.py`` write them (``trajectory_records.py``); the inspector and the
forgetting report read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from mempo.runtime.errors import MempoError
from mempo.runtime.run_files import read_lines

MOST: Final = 3.4028235e38
"""The largest number that a run can compute (float32): a larger one is a fault of the file, and
would make sums infinite."""

LATEST: Final = 2**31
"""No run has as many epochs."""

Number = Annotated[float, Field(strict=True, ge=-MOST, le=MOST)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Epoch = Annotated[int, Field(strict=True, ge=0, lt=LATEST)]

_CHECKED = ConfigDict(extra="ignore", allow_inf_nan=False)
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, config=_CHECKED)
class RoundLine:
    """A round of ``trajectories.jsonl``; ``None`` is what was never computed."""

    number: Count
    text: str
    mem: str | None = None
    action: str | None = None
    argument: str | None = None
    observation: str | None = None
    tool_failed: bool = False
    broken_rules: list[Count] = field(default_factory=list)
    memory_tokens: Count = 0
    p_full: Number | None = None
    p_mem: Number | None = None
    p_previous: Number | None = None
    memory_reward: Number | None = None
    memory_advantage: Number | None = None


@dataclass(frozen=True, slots=True, config=_CHECKED)
class TrajectoryLine:
    """A line of ``trajectories.jsonl`` (``trajectory_record``). ``model`` and
    ``context`` are empty where ``train.py`` wrote it."""

    epoch: Epoch
    task: str
    sample: Count
    rounds: list[RoundLine]
    model: str = ""
    context: str = ""
    source: str = ""
    question: str = ""
    golds: list[list[str]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    ending: str | None = None
    answer: str | None = None
    format_valid: bool | None = None
    metrics: dict[str, Number] = field(default_factory=dict)
    reward: Number | None = None
    outcome_advantage: Number | None = None
    total_tokens: Count = 0
    peak_tokens: Count = 0
    policy_tokens: Count = 0
    tool_calls: Count = 0
    tool_failures: Count = 0
    tool_errors: Count = 0
    repeated_rounds: Count = 0

    @property
    def memory_reward(self) -> float | None:
        """Mean memory reward of the scored rounds, ``None`` without any."""
        rewards = [one.memory_reward for one in self.rounds if one.memory_reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


_TRAJECTORY = TypeAdapter(TrajectoryLine)


def read_trajectories(path: Path) -> list[TrajectoryLine]:
    """The lines of a trajectories file; a half-written last one is left out. Raises ``MempoError``
    with file and line for one that cannot be read."""
    return read_checked_lines(path, _TRAJECTORY)


def read_checked_lines(
    path: Path, kind: TypeAdapter[_Record], check: Callable[[_Record], None] | None = None
) -> list[_Record]:
    """The lines of a JSON-lines file as ``kind``. ``check`` may raise ``ValueError``. Raises
    ``MempoError`` with file and line."""
    return [record for _, record in checked_lines(path, kind, check)]


def trajectory_records(path: Path) -> list[dict[str, Any]]:
    """The lines that ``read_trajectories`` would read, as they stand there."""
    return [line for line, _ in checked_lines(path, _TRAJECTORY)]


def checked_lines(
    path: Path, kind: TypeAdapter[_Record], check: Callable[[_Record], None] | None = None
) -> Iterator[tuple[dict[str, Any], _Record]]:
    """Each line as it stands there, and what ``read_checked_lines`` makes of it."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = kind.validate_python(line)
            if check is not None:
                check(record)
        except ValidationError as error:
            raise MempoError(f"{path}, line {number}: {first_error(error)}") from None
        except ValueError as error:
            raise MempoError(f"{path}, line {number}: {error}") from None
        yield line, record


def first_error(error: ValidationError) -> str:
    """The first thing that is wrong, with the field's name."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the line"
    return f"{where}: {first['msg']}"
