"""Seconds and peak memory of the phases of an epoch (around the method)."""

from __future__ import annotations

import time

import pytest
import torch

from mempo.runtime.phases import Phases, bytes_in_use, peak_bytes, reset_peak


def test_a_phase_has_its_own_seconds_and_peak() -> None:
    phases = Phases()
    with phases.measured("first"):
        time.sleep(0.05)
        block = torch.ones(64 * 2**20)  # 256 MiB, gone before the second phase
        del block
    with phases.measured("second"):
        pass
    assert 0.05 <= phases.seconds["first"] < 5
    assert phases.seconds["second"] < phases.seconds["first"]
    if bytes_in_use() is None:
        pytest.skip("this system does not tell a process's memory")
    assert phases.peak_gib["first"] - phases.peak_gib["second"] == pytest.approx(0.25, abs=0.1)


def test_the_peak_is_what_was_in_use_at_most() -> None:
    if not reset_peak():
        pytest.skip("this system does not tell a process's memory")
    before = bytes_in_use()
    assert before is not None
    block = torch.ones(32 * 2**20)
    del block
    peak = peak_bytes()
    assert peak is not None
    assert peak - before == pytest.approx(128 * 2**20, rel=0.2)


def test_a_phase_that_raises_leaves_no_time() -> None:
    phases = Phases()
    with pytest.raises(ZeroDivisionError), phases.measured("sync"):
        _ = 1 / 0
    assert phases.seconds == {}
    with phases.measured("sync"):
        pass
    assert 0 <= phases.seconds["sync"] < 5


def test_clear_forgets() -> None:
    phases = Phases()
    with phases.measured("sync"):
        pass
    phases.clear()
    assert phases.seconds == {}
    assert phases.peak_gib == {}
