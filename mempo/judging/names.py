"""Which of a trajectory's metrics are its own answer metrics, and which a reward added."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mempo.config.reward import JUDGE

JUDGE_METRICS: Final = (JUDGE, "judge_sum", "judge_agreement", "judge_failed")
"""What a judge adds: the mean and the sum over objectives, the share of its verdicts that exact
match shares, and the parts for which it gave none."""


def added_metrics(names: Iterable[str]) -> list[str]:
    """Those of a judge, then those of functions of one's own (import paths), each once."""
    found = set(names)
    own = sorted(name for name in found if "." in name)
    return [name for name in JUDGE_METRICS if name in found] + own
