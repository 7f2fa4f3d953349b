"""Lightning loggers from the configuration; never a question on the terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger, WandbLogger

from mempo.config import WandbConfig
from mempo.runtime.errors import MempoError
from mempo.runtime.processes import is_first_process
from mempo.runtime.run_folder import WANDB_RUN_ID_FILE

_PROJECT = "mempo"
_ANSWERS_WITHIN_SECONDS = 5.0


def build_logger(
    config: WandbConfig,
    run_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    resumed: bool = False,
) -> list[Logger]:
    """The loggers of a run, at most one; empty when wandb is off.

    Wandb writes below ``run_dir``, or ``WANDB_DIR``. ``settings`` is recorded as the run's
    configuration there. A ``resumed`` run goes on with the wandb run that this folder began, if it
    did. ``mode: auto`` goes by the environment's ``WANDB_MODE`` and ``WANDB_DISABLED``, then online
    where the person is logged in and the server answers, else offline. Raises ``MempoError`` for
    ``mode: online`` without a login.
    """
    mode = _mode(config)
    if mode == "disabled":
        return []
    run_dir = Path(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    return [
        WandbLogger(
            project=config.project or os.environ.get("WANDB_PROJECT") or _PROJECT,
            name=config.name or os.environ.get("WANDB_NAME") or run_dir.resolve().name,
            id=_run_id(run_dir / WANDB_RUN_ID_FILE, resumed),
            resume="allow",
            save_dir=os.environ.get("WANDB_DIR") or run_dir,
            mode=mode,
            config=dict(settings or {}),
        )
    ]


def _run_id(file: Path, resumed: bool) -> str:
    """The wandb run's id: the one in ``file`` for a resumed run, else a new one, kept there."""
    from wandb.sdk.lib.runid import generate_id

    if resumed and file.exists():
        kept = file.read_bytes().decode("utf-8", "replace").strip()
        if re.fullmatch(r"[\w-]+", kept, re.ASCII):
            return kept
        print(f"{file}: it holds no run's id: wandb begins a new run", flush=True)
    new = str(generate_id())
    if is_first_process():
        file.write_text(new + "\n", encoding="utf-8")
    return new


def wandb_loggers(trainer: pl.Trainer) -> list[WandbLogger]:
    """The trainer's loggers that are wandb's."""
    return [one for one in trainer.loggers if isinstance(one, WandbLogger)]


def finish_loggers(trainer: pl.Trainer) -> None:
    """Ends the run's wandb run, so that its file is whole; left to the end of the process, wandb
    sometimes does not write it. On every process; only the first one has a run."""
    if trainer.is_global_zero:
        for logger in wandb_loggers(trainer):
            logger.experiment.finish()


def log_to_wandb(trainer: pl.Trainer, entry: Mapping[str, object]) -> None:
    """Logs what only wandb can show (histograms, tables) to every wandb logger; rank 0 calls it.

    With ``trainer/global_step`` among the values and without ``step``: wandb drops entries whose
    step is smaller than one it has seen. Nothing happens for an empty entry.
    """
    if not entry:
        return
    place = {"epoch": trainer.current_epoch, "trainer/global_step": trainer.global_step}
    for logger in wandb_loggers(trainer):
        logger.experiment.log({**place, **entry})


def logged_in() -> bool:
    """Whether wandb finds a key in the environment or in its netrc file; no network is used.

    Raises ``MempoError`` for a key that cannot be one.
    """
    from wandb.errors import AuthenticationError
    from wandb.sdk.lib.wbauth import authenticate_session

    try:
        auth = authenticate_session(
            host=_host(), source="mempo", prompt=False, update_session=False
        )
    except AuthenticationError as error:
        raise MempoError(
            f"Weights & Biases: {error}. Put the key right (WANDB_API_KEY, or 'wandb login'), or "
            "use logger.mode=offline"
        ) from None
    return auth is not None


def _mode(config: WandbConfig) -> str:
    """``online``, ``offline`` or ``disabled``."""
    if not config.enabled or config.mode == "disabled":
        return "disabled"
    asked: str = config.mode
    if asked == "auto":
        asked = _from_environment() or ("online" if logged_in() else "offline")
    if asked == "online" and not logged_in():
        raise MempoError(
            "logger.mode=online: you are not logged in to Weights & Biases. Run 'wandb login' or "
            "set WANDB_API_KEY, or use logger.mode=offline"
        )
    if asked == "online" and not _answers():
        if is_first_process():
            print(
                "Weights & Biases does not answer: this run is logged offline, and `wandb sync` "
                "uploads it later",
                flush=True,
            )
        return "offline"
    return asked


def _answers() -> bool:
    """Whether wandb's server can be reached; wandb itself would try for minutes."""
    import httpx

    try:
        httpx.get(_host(), timeout=_ANSWERS_WITHIN_SECONDS)
    except httpx.HTTPError:
        return False
    return True


def _host() -> str:
    """The address of wandb's server, or of one's own."""
    import wandb

    return os.environ.get("WANDB_BASE_URL") or str(wandb.Settings().base_url)


def _from_environment() -> str | None:
    if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes", "on"):
        return "disabled"
    mode = os.environ.get("WANDB_MODE", "").lower()
    mode = {"dryrun": "offline", "run": "online"}.get(mode, mode)
    return mode if mode in ("online", "offline", "disabled") else None
