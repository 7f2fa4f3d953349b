"""Shared by all tests: where cases stand, and how long property tests look.

``MEMPO_HYPOTHESIS_EXAMPLES`` raises the number of examples of each property test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.cases_path import case_file as find_case_file

settings.register_profile(
    "mempo",
    max_examples=int(os.environ.get("MEMPO_HYPOTHESIS_EXAMPLES", "300")),
    deadline=None,
    derandomize="MEMPO_HYPOTHESIS_EXAMPLES" not in os.environ,
)
settings.load_profile("mempo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files come by their number of slow tests, so that two workers end at about the same time."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session")
def case_file() -> Callable[[str], Path]:
    """``case_file(name)`` gives the path of a file of cases."""
    return find_case_file
