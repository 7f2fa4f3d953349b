"""The settings that an agent is asked with: those of its run, as ``evaluate.py`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hydra.errors import HydraException

from mempo.agent.prompts import check_template
from mempo.agent.tools import check_tools
from mempo.command.cli import explain_composition
from mempo.command.preflight import check_accelerator, check_engine
from mempo.command.run_settings import EvaluationSettings, evaluation_settings
from mempo.config import Config, require_path
from mempo.evaluation.named_models import model_folder, run_of
from mempo.records.run_config import read_config, section
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.program import command, hydra_value
from mempo.runtime.run_folder import CONFIG_FILE

SETTING: Final = "evaluation.model_path"
_NOT_READ: Final = "data.questions=not-read"
_NO_FOLDER: Final = "runs/asked"  # nothing is written


def asking_settings(
    path: str, context: str, overrides: Sequence[str], seed: int | None
) -> EvaluationSettings:
    """The settings of one model, by the rules of ``evaluate.py``; what they name is looked at.

    Raises ``ConfigError`` that says what to change.
    """
    own = [f"{SETTING}={hydra_value(path)}"]
    if seed is not None:
        own.append(f"seed={seed}")
    served = "engine=openai" in overrides or "engine.kind=openai" in overrides
    given = [*_for_passages(overrides, _own_format(path, served)), *own]
    try:
        found = evaluation_settings(given, _NO_FOLDER)
    except HydraException as error:
        program = command("evaluate", "mempo.command.evaluate")
        raise ConfigError(explain_composition(error, "evaluate", program)) from None
    for config in (found.config, *found.own.values()):
        check_context(config, context)
        _check(config)
    return found


def check_context(config: Config, context: str) -> None:
    """Raises ``ConfigError`` for a context that there is not, or for which the instructions are
    not written."""
    known = config.evaluation.known_contexts
    if context not in known:
        raise ConfigError(
            f"there is no context {context!r}: take one of {', '.join(known)}, or add your own to "
            "evaluation.modes"
        )
    ways = (config.evaluation.mode(context).context,)
    check_template(config.model.prompt_template, config.tools, ways)


def check_question(question: str) -> None:
    """Raises ``MempoError`` for what is no question."""
    if not question.strip():
        raise MempoError("the question is empty: ask something")
    try:
        question.encode()
    except UnicodeEncodeError as error:
        raise MempoError(f"the question is not valid text ({error})") from None


def _own_format(path: str, served: bool) -> str:
    """``data.format`` of a model's run; of one without a run what ``evaluate.py`` begins with."""
    run = run_of(model_folder(path, SETTING, served))
    if run is None:
        return "world"
    file = Path(run) / CONFIG_FILE
    try:
        data: dict[str, Any] = section(read_config(file), "data", file)
    except MempoError as error:
        raise ConfigError(str(error)) from None
    return str(data.get("format", "world"))


def _for_passages(overrides: Sequence[str], own_format: str) -> list[str]:
    """The overrides, and what asking alone makes of them: who names other passages need not name
    questions as well, nor the format of a file of questions."""
    names = {one.lstrip("+").partition("=")[0] for one in overrides}
    server = "retriever=http" in overrides or "retriever.kind=http" in overrides
    passages = "data.corpus" in names or server
    if not passages:
        return list(overrides)
    found = list(overrides)
    if "data" not in names and own_format == "world" and "experiment" not in names:
        found.insert(0, "data=local")
        names.add("data")
    if names & {"data", "experiment"} and "data.questions" not in names:
        found.append(_NOT_READ)
    if server and "data.corpus" not in names:
        found.append("data.corpus=null")
    return found


def _check(config: Config) -> None:
    """What can be told before seconds of imports."""
    if config.data.corpus is not None:
        require_path(config.data.corpus, "data.corpus")
    check_tools(config.tools)
    check_engine(config)
    check_accelerator(config)
