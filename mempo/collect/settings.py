"""What is asked of ``mempo collect``, and the settings that it means."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from hydra.errors import HydraException

from mempo.agent.prompts import check_template
from mempo.collect.selection import Selection
from mempo.command.cli import CONF_DIR, compose_tree, explain_composition, to_config
from mempo.command.preflight import check_accelerator, check_engine, check_evaluated_paths
from mempo.command.run_settings import EvaluationSettings, evaluation_settings
from mempo.config import Config, writes_memory
from mempo.evaluation.settings import deciding_settings
from mempo.runtime.errors import ConfigError
from mempo.runtime.program import command, hydra_value

_NO_FOLDER: Final = "runs/collected"  # nothing is written there
_NOT_COLLECTED_WITH: Final = ("group_size", "tasks_per_epoch", "overlap", "curriculum")
"""Settings of ``rollout`` that only training reads."""


Teacher = Literal["model", "world", "gold"]


@dataclass(frozen=True)
class Wanted:
    """The command line. ``teacher``: ``model``; ``world``, the generated world's oracle; or
    ``gold``, which knows the answers (``gold.py``)."""

    model: str | None
    output: Path
    overrides: Sequence[str] = ()
    teacher: Teacher = "model"
    attempts: int = 4
    tasks: int | None = None
    split: Literal["train", "heldout"] = "train"
    selection: Selection = field(default_factory=Selection)


def data_overrides(data: str) -> list[str]:
    """What ``--data`` means: the name of a format, or a file of questions of one's own."""
    if (CONF_DIR / "data" / f"{data}.yaml").is_file():
        return [f"data={data}"]
    return ["data=local", f"data.questions={hydra_value(data)}"]


def collecting_settings(wanted: Wanted) -> EvaluationSettings:
    """The settings of the teacher's run, with the command line's on top; what they name is looked
    at. Raises ``ConfigError`` that says what to change."""
    try:
        if wanted.teacher != "model":
            tree = compose_tree("evaluate", wanted.overrides, run_dir=_NO_FOLDER)
            found = EvaluationSettings(to_config(tree), {}, (), None)
        else:
            model = f"evaluation.model_path={hydra_value(wanted.model or '')}"
            found = evaluation_settings([*wanted.overrides, model], _NO_FOLDER)
    except HydraException as error:
        program = command("evaluate", "mempo.command.evaluate")
        raise ConfigError(explain_composition(error, "evaluate", program)) from None
    config = found.config
    check_evaluated_paths(config)
    context = config.rollout.context
    check_template(config.model.prompt_template, config.tools, [context])
    if wanted.teacher != "model":
        if not writes_memory(context):
            raise ConfigError(
                f"--teacher {wanted.teacher}: it writes memories, and rollout.context={context} "
                "has none: take another context, or a model as the teacher"
            )
        if wanted.teacher == "world" and config.data.format != "world":
            raise ConfigError(
                f"--teacher world: the oracle knows the generated world alone, and data.format="
                f"{config.data.format}: leave data out, or take --teacher gold "
                "or a model"
            )
    else:
        check_engine(config)
        check_accelerator(config)
    # How many tasks an epoch takes is training's business: there may be fewer here.
    rollout = dataclasses.replace(config.rollout, tasks_per_epoch=1)
    return dataclasses.replace(found, config=dataclasses.replace(config, rollout=rollout))


def attempts_record(config: Config, wanted: Wanted, teacher: str) -> dict[str, Any]:
    """All that decides an attempt. How many there are, and which are kept, may change later."""
    sections = ("data", "retriever", "model", "rollout", "engine", "scoring")
    found = deciding_settings(config, sections)
    for name in _NOT_COLLECTED_WITH:
        found["rollout"].pop(name)
    if wanted.teacher == "model":
        found.pop("scoring")
    record = {"teacher": teacher, "split": wanted.split, "seed": config.seed, **found}
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain
