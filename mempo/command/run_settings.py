"""The settings of ``evaluate.py``: a run's own, where it is given a run's folder.

A model is evaluated as it was trained: spoken to with the run's instructions, system message and
precision, on the run's tasks and passages, within the run's limits for evaluation. They stand in
the run's ``.hydra/config.yaml``. The command line is composed on top of them by Hydra, as it is on
top of ``conf/evaluate.yaml``, so that what it says wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mempo.command.cli import CONF_DIR, compose_tree, hydra_untouched, to_config
from mempo.config import DEFAULT_TOOLS, Config, writes_memory
from mempo.evaluation.named_models import model_folder, named_models, run_of
from mempo.evaluation.settings import check_shared
from mempo.records.run_config import check_section, read_config
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.named_objects import find_modules_in
from mempo.runtime.nested import leaves
from mempo.runtime.program import hydra_value
from mempo.runtime.run_folder import CONFIG_FILE, STARTED_IN_FILE

_SECTIONS: Final = (
    "model", "data", "retriever", "rollout", "engine", "reward", "scoring", "evaluation", "tools"
)  # fmt: skip
"""What a run brings. The rest is how it was trained, and where: seed and devices are the call's."""

_NOT_BROUGHT: Final = (
    "evaluation.model_path",
    "evaluation.models",
    "model.chat_template",  # the run's model folder holds it
    "rollout.top_p",  # of training alone
    "rollout.top_k",
)
_PATHS: Final = (
    "data.questions", "data.heldout_questions", "data.corpus", "retriever.index",
    "model.prompt_template", "reward.judge.prompt",
)  # fmt: skip
_MIXED_PATHS: Final = ("questions", "heldout_questions", "corpus", "aliases")
"""Those of each data set of ``data.mix``."""
_BASE: Final = "mempo_run"
_SHOWN: Final = 8


@dataclass(frozen=True)
class EvaluationSettings:
    """``config`` is the call's; ``own`` has each model's, by what the setting calls it. ``told``
    are the lines that say where settings come from. ``tree`` is what was composed for the first
    run, None where there is none."""

    config: Config
    own: Mapping[str, Config]
    told: Sequence[str]
    tree: DictConfig | None


def evaluation_settings(overrides: Sequence[str], run_dir: str) -> EvaluationSettings:
    """What the command line's ``overrides`` of ``conf/evaluate.yaml`` mean.

    Raises ``ConfigError`` for a model folder that brings no settings where ``model=`` gives none
    either, and for runs that bring different tasks or limits.
    """
    defaults = compose_tree("evaluate")
    tree, model_given = _composed(_plain(defaults), overrides, run_dir)
    asked = tree.evaluation
    setting, wanted = named_models(asked.model_path, _plain(asked).get("models"))
    served = tree.engine.kind == "openai"
    runs = {name: run_of(model_folder(path, setting, served)) for name, path in wanted.items()}
    if served and not model_given and not any(runs.values()):
        # Of a model that somebody serves nothing else is known: it is spoken to as any real one.
        overrides, model_given = ["model=pretrained", *overrides], True
    for name, run in runs.items():
        if run is None and not model_given:
            raise ConfigError(_how_to_speak(setting, wanted[name]))
    trees: dict[str, DictConfig] = {}
    told: list[str] = []
    for name, run in runs.items():
        if run is not None:
            base = _with_settings_of(run, defaults)
            trees[name], _ = _composed(base, overrides, run_dir)
            _name_path(trees[name], wanted)
            told.append(_told(run, base, trees[name]))
    configs = {name: _checked(trees[name], cast(Path, runs[name])) for name in trees}
    if not configs:
        named = [f"run_dir={hydra_value(run_dir)}", *overrides]
        tree = compose_tree("evaluate", named)
        _name_path(tree, wanted)
        return EvaluationSettings(to_config(tree), {}, (), None)
    check_shared(configs)
    config = next(iter(configs.values()))
    own = {
        name: dataclasses.replace(config, model=its.model, engine=its.engine, tools=its.tools)
        for name, its in configs.items()
    }
    return EvaluationSettings(config, own, told, next(iter(trees.values())))


def _composed(
    base: Mapping[str, Any], overrides: Sequence[str], run_dir: str
) -> tuple[DictConfig, bool]:
    """``base`` with the command line on top, and whether that chose an option of ``model``."""
    program = cast(DictConfig, OmegaConf.load(CONF_DIR / "evaluate.yaml"))
    groups = [str(next(iter(entry))) for entry in program.defaults if isinstance(entry, DictConfig)]
    defaults = ["_self_", *({name: None} for name in groups if not name.startswith("override "))]
    ConfigStore.instance().store(name=_BASE, node={"defaults": defaults, **base})
    with hydra_untouched(), initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        tree = hydra_compose(
            _BASE, [f"run_dir={hydra_value(run_dir)}", *overrides], return_hydra_config=True
        )
    given = tree.hydra.runtime.choices.get("model") is not None
    OmegaConf.set_struct(tree, False)
    del tree["hydra"]
    return tree, given


def _name_path(tree: DictConfig, wanted: Mapping[str, str]) -> None:
    """``model=pretrained`` asks for a path to train from, which is not read here."""
    if tree.model.source == "pretrained" and tree.model.path is None:
        tree.model.path = next(iter(wanted.values()))


def _with_settings_of(run: Path, defaults: DictConfig) -> dict[str, Any]:
    """The defaults with a run's settings in their place."""
    file = run / CONFIG_FILE
    try:
        found = read_config(file)
        own: list[str] = [name for name in _SECTIONS if name in found]
        for name in own:
            check_section(found, name, file)
        started_in = _started_in(run)
        tree = OmegaConf.create(found)
        brought = {name: OmegaConf.to_container(tree[name], resolve=True) for name in own}
        base = cast(DictConfig, OmegaConf.merge(OmegaConf.create(_plain(defaults)), brought))
    except MempoError as error:
        raise ConfigError(str(error)) from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{file}: the run's settings cannot be read ({error})") from None
    if not writes_memory(str(OmegaConf.select(base, "rollout.context"))):
        OmegaConf.update(base, "memory.weight", 0.0)  # as it was trained
    for setting in _NOT_BROUGHT:
        OmegaConf.update(base, setting, OmegaConf.select(defaults, setting))
    mixed = OmegaConf.select(base, "data.mix") or {}
    of_sets = [f"data.mix.{name}.{file}" for name in mixed for file in _MIXED_PATHS]
    for name in (*_PATHS, *of_sets):
        path = OmegaConf.select(base, name)
        if isinstance(path, str) and started_in is not None and (started_in / path).exists():
            OmegaConf.update(base, name, str(started_in / path))
    if started_in is not None and _own_tools(_plain(base)):
        find_modules_in(started_in)
    return _plain(base)


def _started_in(run: Path) -> Path | None:
    """The folder that the run's relative paths start from, where it is not the current one."""
    file = run / STARTED_IN_FILE
    found = leaves(read_config(file)).get("hydra.runtime.cwd")
    if found is not None and not isinstance(found, str):
        raise MempoError(f"{file}: hydra.runtime.cwd is no folder: repair or remove the file")
    return None if found is None or Path(found) == Path.cwd() else Path(found)


def _checked(tree: DictConfig, run: Path) -> Config:
    try:
        return to_config(tree)
    except ConfigError as error:
        raise ConfigError(f"{error}\n(with the settings of {run / CONFIG_FILE})") from None


def _told(run: Path, base: Mapping[str, Any], tree: DictConfig) -> str:
    """Where settings come from, and what the command line changed."""
    before = leaves(_by_number({name: base[name] for name in _SECTIONS}))
    after = leaves(_by_number({name: _plain(tree)[name] for name in _SECTIONS}))
    changed = [
        f"{name}={after.get(name)}"
        for name in [*after, *(one for one in before if one not in after)]
        if before.get(name) != after.get(name) and name not in _NOT_BROUGHT[:2]
    ]
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    here = f"; changed here: {', '.join(changed[:_SHOWN])}{more}" if changed else ""
    own = _own_tools(_plain(tree))
    tools = f"; its own tools: {', '.join(own)}" if own else ""
    return f"settings of {run}{tools}{here}"


def _own_tools(tree: Mapping[str, Any]) -> list[str]:
    """The import paths of tools that are not the program's, which will be run."""
    named = [str(tool.get("_target_")) for tool in tree["tools"] if isinstance(tool, Mapping)]
    return [name for name in named if name not in {tool._target_ for tool in DEFAULT_TOOLS}]


def _by_number(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The tools as the command line calls them: ``tools.2.timeout_s``."""
    return {**sections, "tools": dict(enumerate(sections["tools"]))}


def _how_to_speak(setting: str, path: str) -> str:
    options = ", ".join(sorted(file.stem for file in CONF_DIR.joinpath("model").glob("*.yaml")))
    return (
        f"{setting}={path} is a model without a run's settings: say how it is spoken to, with "
        f"model=pretrained or another of {options}; or give the folder of the run that trained it"
    )


def _plain(tree: Any) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(tree))
