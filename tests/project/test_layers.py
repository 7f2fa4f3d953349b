"""Rooms import downwards only, and the contracts that say so notice (around the method)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> tuple[int, str]:
    """Exit status and output of ``lint-imports`` on the packages in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    ignore = shutil.ignore_patterns("__pycache__")
    for package in ("mempo", "callbacks"):
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_rooms_import_downwards() -> None:
    status, said = lint(ROOT)
    assert status == 0, said


def test_every_room_stands_in_a_layer() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for path in (ROOT / "mempo").iterdir():
        name = path.name.removesuffix(".py")
        if name not in ("__init__", "__pycache__", "py.typed"):
            assert f"mempo.{name}" in text, name


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        (
            "mempo/learning/loss.py",
            "import lightning",
            "mempo.learning is not allowed to import lightning",
        ),
        (
            "mempo/learning/loss.py",
            "import mempo.training.module",
            "mempo.learning is not allowed to import mempo.training",
        ),
        (
            "mempo/plots/runs.py",
            "import mempo.inspect.curves",
            "mempo.plots is not allowed to import mempo.inspect",
        ),
        (
            "mempo/runtime/seeds.py",
            "import mempo.trajectory",
            "mempo.runtime is not allowed to import mempo.trajectory",
        ),
    ],
)
def test_a_wrong_import_is_noticed(copy: Path, file: str, line: str, said: str) -> None:
    path = copy / file
    text = path.read_text(encoding="utf-8")
    assert said not in lint(copy)[1]
    path.write_text(f"{text}\n{line}\n", encoding="utf-8")
    status, found = lint(copy)
    path.write_text(text, encoding="utf-8")
    assert status == 1
    assert said in found
