"""A run and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.inspect.document import render_page
from mempo.inspect.reading import read_run
from mempo.inspect.views import Limits
from tests.support.inspected_run import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a<b>&'run")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return render_page(read_run(run), Limits())
