"""Judges stored trajectories anew, by another reward: ``mempo rescore --help``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hydra.errors import HydraException

from mempo.command.cli import compose, explain_composition
from mempo.config import Config
from mempo.evaluation.rescore import rescore, rescored_table, write_rescored
from mempo.evaluation.tables import print_whole
from mempo.judging.judging import check_reward
from mempo.records.trajectory_lines import read_trajectories
from mempo.runtime.disk import require_writable
from mempo.runtime.errors import ConfigError
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command
from mempo.runtime.progress import progress_bar
from mempo.runtime.run_folder import TRAJECTORIES_FILE

_READ: Final = ("reward", "cache_dir", "callbacks.progress_bars")


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("rescore", "mempo.command.rescore"),
        description="Judges the trajectories of a run or an evaluation anew, by another reward, "
        "without an engine. The table is printed and written beside the old files, which stay "
        "(docs/rewards.md).",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a folder or its trajectories.jsonl")
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="SETTING",
        help="the reward: reward.metric=f1, reward.metric=my_rewards.fuzzy, or reward=judge "
        "reward.judge.url=URL reward.judge.model=NAME",
    )
    options = parser.parse_args(arguments)
    file = _trajectories_file(options.run)
    config = _composed(options.settings)
    require_writable(file.parent, "RUN")
    check_reward(config.reward, config.cache_dir)
    lines = read_trajectories(file)
    if not lines:
        raise ConfigError(f"{file} holds no trajectories yet")
    with progress_bar("judging", len(lines), enabled=config.callbacks.progress_bars) as bar:
        rescored = rescore(lines, config.reward, config.cache_dir, bar.advance)
    written = write_rescored(file.parent, file, rescored, config.reward)
    print_whole(rescored_table(rescored))
    print(f"wrote {written[0]} and {written[1]}")


def _trajectories_file(run: Path) -> Path:
    file = run / TRAJECTORIES_FILE if run.is_dir() else run
    if not file.is_file():
        raise ConfigError(
            f"{file} does not exist: name the folder of a run or an evaluation, or its "
            f"{TRAJECTORIES_FILE}"
        )
    return file


def _composed(settings: Sequence[str]) -> Config:
    for setting in settings:
        name = setting.lstrip("+").partition("=")[0]
        if not any(name == read or name.startswith(f"{read}.") for read in _READ):
            raise ConfigError(
                f"{setting}: stored trajectories are judged by the settings of reward alone; "
                f"{', '.join(_READ)} are read"
            )
    try:
        return compose("evaluate", settings)
    except HydraException as error:
        program = command("evaluate", "mempo.command.evaluate")
        raise ConfigError(explain_composition(error, "evaluate", program)) from None


if __name__ == "__main__":
    main()
