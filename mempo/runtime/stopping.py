"""Ctrl-C and SIGTERM: a run that is stopped says what it leaves and how to go on."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig

from mempo.runtime.checkpoint_files import last_checkpoint
from mempo.runtime.processes import is_first_process
from mempo.runtime.program import hydra_value, started_as

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class _Terminated(SystemExit):
    """SIGTERM, raised where the program is, so that engines and loggers are released."""


@contextmanager
def told_when_stopped(go_on: Callable[[], str]) -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM end the program with ``go_on()`` on standard error.

    The exit code is the shell's for the signal: 130 or 143. The first process alone prints.
    """
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except BaseException as error:
        stop = _stop_behind(error)
        if stop is None:
            raise
        cause, code = ("Ctrl-C", INTERRUPTED)
        if isinstance(stop, _Terminated):
            cause, code = ("SIGTERM", TERMINATED)
        if is_first_process():
            print(f"stopped by {cause}. {go_on()}", file=sys.stderr, flush=True)
        raise SystemExit(code) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def how_to_go_on(run_dir: str) -> str:
    """What a stopped training run leaves, and the command that goes on with it."""
    checkpoint = last_checkpoint(run_dir)
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    dropped = ("run_dir", "resume", "ckpt_path")
    kept = [one for one in overrides if one.partition("=")[0] not in dropped]
    command = shlex.join(
        [*shlex.split(started_as()), *kept, f"run_dir={hydra_value(run_dir)}", "resume=auto"]
    )
    if checkpoint is None:
        return f"No epoch has ended yet; start again with\n  {command}"
    return f"Finished epochs are in {run_dir}; go on from {checkpoint.name} with\n  {command}"


def _stop_behind(error: BaseException) -> BaseException | None:
    """The stop that led to ``error``: itself, or what was being handled when it was raised.

    Lightning turns Ctrl-C into an exit of its own, and what is interrupted may end with an error of
    another kind, as a file that is being written does.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, (KeyboardInterrupt, _Terminated)):
        seen = seen.__cause__ or seen.__context__
    return seen


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated(TERMINATED)
