"""Hints name the program as it was started; here it is always `python`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def started_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a person had typed ``python train.py``."""
    monkeypatch.setenv("MEMPO_PROGRAM", "python train.py")
