"""From the command line to ``Config``: composition by Hydra, and what is mistyped there."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mempo.config import Config, load_config
from mempo.config.lightning_switches import INSTEAD
from mempo.config.paths import at_home, path_settings
from mempo.runtime.disk import disk_fault
from mempo.runtime.errors import ConfigError
from mempo.runtime.friendly_errors import end_with, readable_output, remember_folder
from mempo.runtime.program import hydra_value, remember_start, started_as

_PACKAGED = Path(__file__).resolve().parents[1] / "conf"
CONF_DIR = _PACKAGED if _PACKAGED.is_dir() else _PACKAGED.parents[1] / "conf"
"""The configuration: ``mempo/conf`` of an installed package, ``conf/`` of a checkout."""

_HYDRA_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        "help", "hydra-help", "version", "cfg", "resolve", "package", "run", "multirun", "info",
        "shell-completion", "config-path", "config-name", "config-dir", "experimental-rerun",
    )
)  # fmt: skip


def to_config(cfg: DictConfig) -> Config:
    """Resolves what Hydra composed and checks it.

    Raises ``ConfigError`` with the setting and the remedy, also for an interpolation that cannot
    be resolved.
    """
    try:
        mapping = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        setting = getattr(error, "full_key", None) or "configuration"
        raise ConfigError(f"{setting}: {str(error).splitlines()[0]}") from None
    return load_config(cast(dict[str, Any], mapping))


def compose(
    config_name: str = "train",
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path = "runs/latest",
) -> Config:
    """Composes ``conf/<config_name>.yaml`` as the command line does, for tests and scripts.

    ``run_dir`` takes the place of Hydra's output folder, which exists only under ``hydra.main``;
    an override of ``run_dir`` wins. Raises Hydra's own errors for misspelled overrides and unknown
    variants, ``ConfigError`` for values that cannot be used.
    """
    return to_config(compose_tree(config_name, overrides, run_dir=run_dir))


def compose_tree(
    config_name: str = "train",
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path = "runs/latest",
) -> DictConfig:
    """Like ``compose``, but returns Hydra's tree before it is checked."""
    with hydra_untouched(), initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return hydra_compose(config_name, [f"run_dir='{run_dir}'", *overrides])


@contextmanager
def hydra_untouched() -> Iterator[None]:
    """Keeps the state of a surrounding ``hydra.main``, which composing would clear."""
    hydra_state = GlobalHydra.instance().hydra
    job_state = HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = hydra_state
        HydraConfig.instance().cfg = job_state


@contextmanager
def command_line(config_name: str) -> Iterator[None]:
    """Around a program's ``@hydra.main`` function: what a person may type wrong gets one sentence.

    Covers misspelled settings and options, which Hydra refuses before the program is called, and
    lets ``run_dir=`` choose Hydra's own folder too, so that a run has one folder. In a sweep
    (``--multirun``) it is the folder in which each job has its own.
    """
    remember_start(started_as())
    readable_output()
    # Errors reach the handlers below as they are, not as Hydra's own print and exit code.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    for argument, following in pairwise([*sys.argv[1:], "VALUE"]):
        if re.search(r"\d{4000}", argument):
            end_with(f"{argument.partition('=')[0]}: a number of thousands of digits")
        name, _, value = argument.partition("=")
        if name.startswith("--") and name not in _HYDRA_OPTIONS:
            meant = f"{name.lstrip('-')}={value or following}"
            end_with(f"{argument}: settings are written without dashes, as {meant}")
        if name in _groups() and value in ("", "null"):
            end_with(f"{argument}: it names no option: leave it out, or take {_options(name)}")
    sys.argv[1:] = [_from_home(argument) for argument in sys.argv[1:]]
    _put_in_front(_own_folder(sys.argv[1:]))
    if _is_sweep(sys.argv[1:]):
        sys.argv[1:] = _sweep_folders(sys.argv[1:])
    else:
        for argument in _run_dirs(sys.argv[1:]):
            remember_folder(Path(argument[8:].strip("'\"")))
            # Beside it: behind an option (--cfg job) Hydra reads no more settings.
            sys.argv.insert(sys.argv.index(argument), f"hydra.run.dir={argument[8:]}")
    try:
        yield
    except HydraException as error:
        end_with(explain_composition(error, config_name))
    except OSError as error:  # Hydra makes the run's folder before the program is called
        if (sentence := disk_fault(error)) is None:
            raise
        end_with(sentence)


def _from_home(argument: str) -> str:
    """A path setting with ``~`` as the home folder, also in a list: Hydra reads no bare ``~``, and
    takes a quoted one for the name of its own folder."""
    name, _, value = argument.partition("=")
    if name not in {*path_settings(Config), "hydra.run.dir", "hydra.sweep.dir"}:
        return argument
    try:
        if quoted := re.fullmatch(r"(['\"])(~.*)\1", value):
            return f"{name}={hydra_value(at_home(quoted[2]))}"
        bare = re.compile(r"(?<![^\[{,:\s])~[^,\]}'\"]*")
        return f"{name}={bare.sub(lambda found: hydra_value(at_home(found[0])), value)}"
    except ValueError as error:
        end_with(f"{argument}: {error}")


def _own_folder(arguments: Sequence[str]) -> Path | None:
    """The folder of ``--config-dir``. Hydra says so itself when it does not exist."""
    given = get_args_parser().parse_known_args(arguments)[0].config_dir
    return None if given is None else Path(given).resolve()


def _put_in_front(folder: Path | None) -> None:
    """Files of ``folder`` come before those of ``CONF_DIR`` with the same name, for the rest of the
    process. Hydra alone would look there last."""

    class OwnFolder(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            if folder is not None:
                search_path.prepend("own", f"file://{folder}", SearchPathQuery(provider="main"))

    if folder is not None:
        Plugins.instance().register(OwnFolder)


def _run_dirs(arguments: Sequence[str]) -> list[str]:
    if any(argument.startswith("hydra.run.dir=") for argument in arguments):
        return []
    return [argument for argument in arguments if argument.startswith("run_dir=")][-1:]


def _is_sweep(arguments: Sequence[str]) -> bool:
    asked = bool(get_args_parser().parse_known_args(arguments)[0].multirun)
    return asked or "hydra.mode=MULTIRUN" in arguments


def _sweep_folders(arguments: Sequence[str]) -> list[str]:
    """The arguments of a sweep with ``run_dir=`` as the folder of its jobs, which would all write
    into it otherwise: each has one of its number. Ends the program for several folders."""
    found = [argument for argument in arguments if argument.startswith("run_dir=")]
    if not found:
        return list(arguments)
    folder = found[-1][8:]
    if "," in folder and folder == folder.strip("'\""):
        end_with(
            f"{found[-1]}: a sweep has one folder, in which each job gets its own (0, 1, …): give "
            "run_dir one folder"
        )
    folder = folder.strip("'\"")
    own = [f"run_dir='{folder}/${{hydra:job.num}}'", f"hydra.sweep.dir='{folder}'"]
    place = arguments.index(found[0])  # not at the end: behind an option Hydra reads no settings
    rest = [argument for argument in arguments[place:] if argument not in found]
    return [*arguments[:place], *own, *rest]


def explain_composition(error: HydraException, config_name: str, program: str | None = None) -> str:
    """Hydra's message in a sentence, with the name that was probably meant. ``program`` is the one
    that prints all settings, without it the one that was started."""
    text = str(error).strip()
    missing = re.search(r"Could not find '(\w+)/([^']+)'", text)
    if missing is not None and (CONF_DIR / missing[1]).is_dir():
        return _no_option(missing[1], missing[2], text)
    if in_tools := re.match(r"Error merging override (\+*tools\.\d+\.\S+)", text):
        return (
            f"{in_tools[1].lstrip('+')}: the list of tools has no such place: write it into the "
            "list's own file (docs/extending.md), or +tools… where the entry only leaves it out"
        )
    match = re.match(r"Could not override '([^']+)'", text)
    if match is None:
        return text
    name = match[1]
    instead = INSTEAD.get(name.removeprefix("trainer.lightning."))
    if name.startswith("trainer.lightning.") and instead is not None:
        return f"{name}: {instead}"
    group, _, _ = name.partition("@")
    known = [*_settings(compose_tree(config_name)), *_groups()]
    close = difflib.get_close_matches(group, known, n=1, cutoff=0.6)
    meant = f"; did you mean {close[0]}?" if close else ""
    prints = f"{program or started_as()} --cfg job"
    return f"{name}: there is no such setting{meant}\n`{prints}` prints all settings"


def _no_option(group: str, option: str, text: str) -> str:
    """For an option that its group does not have. Hydra's ``text`` lists those that it has, one of
    ``--config-dir`` among them."""
    listed = (
        text.partition(f"Available options in '{group}':")[2]
        .partition("\nConfig search")[0]
        .split()
    )
    options = listed or _options(group).split(", ")
    close = difflib.get_close_matches(option, options, n=1, cutoff=0.5)
    meant = f"; did you mean {group}={close[0]}?" if close else ""
    return f"{group}={option}: there is no such option{meant}\n{group} is one of " + ", ".join(
        options
    )


def _settings(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for key in tree:
        value = tree[key] if not OmegaConf.is_missing(tree, key) else None
        yield f"{prefix}{key}"
        if isinstance(value, DictConfig):
            yield from _settings(value, f"{prefix}{key}.")


def _options(group: str) -> str:
    return ", ".join(sorted(file.stem for file in (CONF_DIR / group).glob("*.yaml")))


def _groups() -> list[str]:
    return [folder.name for folder in CONF_DIR.iterdir() if folder.is_dir()]
