"""What a process says that waited for another one in vain (docs/collectives.md)."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch.distributed as dist

from mempo.runtime.errors import MempoError

_ROOMS: Final = ("/mempo/", "/callbacks/")
_TIMED_OUT: Final = (
    "Timed out waiting",  # gloo
    "Application timeout caused pair closure",  # gloo, after another time-out
    "wait timeout after",  # the store, where groups are made
    "collective operation timeout",  # NCCL's watchdog
)
_GONE: Final = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class LostProcessError(MempoError):
    """Another process of the run did not come to an exchange, or is gone."""


@contextmanager
def awaiting_others(timeout_s: int) -> Iterator[None]:
    """Raises ``LostProcessError`` in the place of what gloo, NCCL and the store raise when another
    process did not answer within ``timeout_s`` seconds or has ended."""
    try:
        yield
    except RuntimeError as error:
        reason = _reason(error, timeout_s)
        if reason is None:
            raise
        raise LostProcessError(f"{reason} (it waited in {_place(error)})") from error


def _reason(error: RuntimeError, timeout_s: int) -> str | None:
    text = str(error)
    if any(words in text for words in _TIMED_OUT):
        return (
            f"a process waited {timeout_s} s for another one of this run, in vain: look at what "
            "the others said and whether they still work, or raise trainer.timeout_s"
        )
    of_processes = isinstance(error, dist.DistError) or "gloo" in text or "NCCL" in text
    if of_processes and any(words in text for words in _GONE):
        return "another process of this run has ended: what it said last tells why"
    return None


def _place(error: BaseException) -> str:
    """The innermost function of the project that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if any(room in frame.filename for room in _ROOMS) and frame.filename != __file__
    ]
    callers = [frame for frame in own if not frame.filename.endswith("/runtime/gather.py")]
    frame = (callers or own or frames)[-1]
    return f"{'/'.join(frame.filename.rsplit('/', 3)[-3:])}, {frame.name}"
