"""The running mean of curves (around the method), worked out by hand."""

from __future__ import annotations

import pytest

from mempo.records.smoothing import WINDOW, running_mean, running_mean_by_epoch


def test_running_mean_is_shorter_at_the_ends() -> None:
    assert running_mean_by_epoch({1: 1.0, 2: 2.0, 4: 6.0}, 3) == pytest.approx(
        {1: 1.5, 2: 3.0, 4: 4.0}
    )
    assert running_mean_by_epoch({1: 1.0, 2: 2.0}, 1) == {1: 1.0, 2: 2.0}


def test_gaps_stay_gaps_and_count_for_nothing() -> None:
    assert running_mean([1.0, None, 4.0, 1.0], window=3) == [1.0, None, 2.5, 2.5]
    assert running_mean([]) == []


def test_nine_epochs_unless_one_asks_otherwise() -> None:
    assert WINDOW == 9
    # The middle of 0 … 10 sees 1 … 9, the first 0 … 4, the last 6 … 10.
    means = running_mean([float(value) for value in range(11)])
    assert (means[0], means[5], means[10]) == (2.0, 5.0, 8.0)
