"""The trajectories of ``sft.path``, checked against the rules of the protocol (specification
section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mempo.agent.protocol import (
    DEFAULT_PROTOCOL,
    Protocol,
    parse_round,
    trajectory_broken_rules,
)
from mempo.config import SftConfig
from mempo.data.formats.reading import read_rows
from mempo.data.formats.row import QuestionSource
from mempo.demonstrations.asked_question import PromptFrame
from mempo.demonstrations.trajectory_shapes import WrittenTrajectory, written_trajectory
from mempo.row_files.endings import JSON, ending
from mempo.row_files.rows import DataError, Row
from mempo.row_files.rows_of import file_rows
from mempo.row_files.told import Told

RULES: Final = {
    1: "every tag that opens also closes, and none closes that did not open",
    2: f"a round has exactly one {DEFAULT_PROTOCOL.one_action}",
    3: "a round has exactly one <think> that is not blank, before its action",
    4: "the action's argument is not blank",
    5: "nothing stands outside the tags",
    6: "the model writes no <information> itself",
    7: "there is exactly one <answer>, and it ends the last round",
    8: "a round after the first begins with exactly one <mem> that is not blank",
}
"""Specification section 2, as faults of a row name them."""

HOW_TO_SKIP: Final = "sft.skip_bad_rows=true leaves such rows out and counts them"

SKIPPED: Final = "could not be used and were left out (sft.skip_bad_rows)"
_INSTRUCTIONS: Final = "asked inside instructions of their own, which were taken off"
_BELOW: Final = "have no reward above sft.min_reward and were left out"


@dataclass(frozen=True)
class ReadTrajectories:
    """What ``read_trajectory_files`` gives. ``told`` counts what was left out."""

    trajectories: tuple[WrittenTrajectory, ...]
    rows: int
    told: Told = field(compare=False)


def read_trajectory_files(
    config: SftConfig, frame: PromptFrame, protocol: Protocol = DEFAULT_PROTOCOL
) -> ReadTrajectories:
    """All usable rows of the files in ``sft.path``, in their order.

    Raises ``DataError`` with file, line and rule for the first row that cannot be used, which
    ``sft.skip_bad_rows`` counts and leaves out; for a file that cannot be read; and where no row is
    left.
    """
    told, kept, count = Told(), list[WrittenTrajectory](), 0
    for file in config.paths:
        for row in _rows(file):
            count += 1
            try:
                if isinstance(row, DataError):
                    raise row
                trajectory = written_trajectory(row, frame, protocol)
                if config.min_reward is not None and not _rewarded(trajectory, config.min_reward):
                    told.add(_BELOW, row.place)
                    continue
                _check(trajectory, config.may_break, protocol)
            except DataError as error:
                if not config.skip_bad_rows:
                    raise DataError(f"{error}. {HOW_TO_SKIP}") from None
                told.add(SKIPPED, str(error))
            else:
                kept.append(trajectory)
                if trajectory.instructions:
                    told.add(_INSTRUCTIONS, row.place)
    if not kept:
        why = "; ".join(told.sentences()) or "the files hold no rows"
        raise DataError(f"sft.path={', '.join(config.paths)}: no trajectory is left: {why}")
    return ReadTrajectories(tuple(kept), count, told)


def _rule(number: int, protocol: Protocol) -> str:
    return RULES[number].replace(DEFAULT_PROTOCOL.one_action, protocol.one_action)


def _rows(file: str) -> Iterator[Row | DataError]:
    """JSON is read without ``datasets``, which takes seconds to import."""
    if ending(file) in JSON:
        yield from file_rows(Path(file))
    else:
        yield from read_rows(QuestionSource("sft", file, "sft.path"))


def _rewarded(trajectory: WrittenTrajectory, least: float) -> bool:
    if trajectory.reward is None:
        raise DataError(
            f"{trajectory.place}: the row has no reward for sft.min_reward to look at: give it in "
            'the field "reward", or leave the setting out'
        )
    return trajectory.reward > least


def _check(trajectory: WrittenTrajectory, may_break: Sequence[int], protocol: Protocol) -> None:
    """Raises ``DataError`` for the first broken rule that ``may_break`` does not name."""
    texts = [one.text for one in trajectory.rounds]
    for number, text in enumerate(texts, start=1):
        for rule in parse_round(text, number, protocol).broken_rules:
            if rule not in may_break:
                raise DataError(
                    f"{trajectory.place}: round {number} breaks rule {rule} of the protocol: "
                    f"{_rule(rule, protocol)}"
                )
    if 7 in trajectory_broken_rules(texts, protocol) and 7 not in may_break:
        raise DataError(
            f"{trajectory.place}: the trajectory breaks rule 7 of the protocol: {RULES[7]}"
        )
    for number, one in enumerate(trajectory.rounds[:-1], start=1):
        if one.observation is None:
            raise DataError(
                f"{trajectory.place}: round {number} has no observation, and a round follows it"
            )
