"""A run that is stopped says how to go on (around the method)."""

from __future__ import annotations

import os
import signal

import pytest

from mempo.runtime.stopping import told_when_stopped


def stopped(work: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught, told_when_stopped(lambda: "Go on."):
        work()  # type: ignore[operator]
    return int(str(caught.value.code)), capsys.readouterr().err


def interrupted() -> None:
    raise KeyboardInterrupt


def broken_by_an_interrupt() -> None:
    """As a checkpoint that is being written ends."""
    try:
        interrupted()
    finally:
        raise RuntimeError("unexpected position in the file")


def turned_into_an_exit() -> None:
    try:
        interrupted()
    except KeyboardInterrupt:
        raise SystemExit(1) from None


@pytest.mark.parametrize("work", [interrupted, broken_by_an_interrupt, turned_into_an_exit])
def test_ctrl_c(work: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped(work, capsys) == (130, "stopped by Ctrl-C. Go on.\n")


def test_sigterm(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    work = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    assert stopped(work, capsys) == (143, "stopped by SIGTERM. Go on.\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_errors_and_exits_pass() -> None:
    for error in (ValueError("of the work"), SystemExit(2)):
        with pytest.raises(type(error)) as caught, told_when_stopped(lambda: "Go on."):
            raise error
        assert caught.value is error
