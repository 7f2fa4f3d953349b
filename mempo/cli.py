"""From Hydra's composed configuration to ``Config``, and errors a person can read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mempo.config import Config, ConfigError, load_config
from mempo.errors import MempoError

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"

EXIT_USER_ERROR = 2
"""Exit code for causes that the person can put right."""


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
    with _hydra_untouched(), initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return hydra_compose(config_name, [f"run_dir='{run_dir}'", *overrides])


@contextmanager
def _hydra_untouched() -> Iterator[None]:
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
def friendly_errors() -> Iterator[None]:
    """Ends the program with a short message and exit code 2 for errors a person can put right.

    Works as a ``with`` block and as a decorator (``@friendly_errors()``, under ``@hydra.main``).
    Everything but ``MempoError`` and ``ConfigError`` passes through with its traceback.
    """
    try:
        yield
    except (MempoError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_USER_ERROR) from None
