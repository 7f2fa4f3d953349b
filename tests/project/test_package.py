"""The wheel: built, installed into an environment of its own, and used from an empty folder
(around the method)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "pyproject.toml", "setup.py", "requirements-common.txt", "README.md", "LICENSE",
    "mempo", "callbacks", "conf",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no leftovers of building stay in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, sources / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    [built] = folder.glob("mempo-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with the wheel, which sees the packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    pip("--python", str(folder / "bin" / "python"), "install", "--no-deps", str(wheel))
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"


def pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-index"], check=True, timeout=120
    )


def run(program: Path, *arguments: str, folder: Path, expect: int = 0) -> str:
    """Standard output of a program that is started in ``folder``."""
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [program, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == expect, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def files_of(folder: str) -> set[str]:
    """The files of the checkout's folder, by their paths in it."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if "__pycache__" not in path.parts and not path.is_relative_to(ROOT / "mempo" / "conf")
    }


def test_every_file_of_the_packages_and_the_configuration_travels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    configuration = {f"mempo/{name}" for name in files_of("conf")}
    assert packed == files_of("mempo") | files_of("callbacks") | configuration
    assert {"mempo/py.typed", "mempo/agent/prompts/default.txt", "mempo/inspect/page/page.html"} < (
        packed
    )


def test_it_runs_from_an_empty_folder_and_leaves_it_empty(installed: Path, tmp_path: Path) -> None:
    found = run(
        installed / "python",
        "-c",
        "import callbacks, mempo.command.cli as cli; print(callbacks.__file__, cli.CONF_DIR)",
        folder=tmp_path,
    )
    for path in found.split():
        assert Path(path).is_relative_to(installed.parent)
    assert "  train " in run(installed / "mempo", "--help", folder=tmp_path)
    assert "usage: mempo train [GROUP" in run(
        installed / "mempo", "train", "--help", folder=tmp_path
    )
    plan = run(
        installed / "mempo", "train", "model=qwen2_5_7b", "trainer=fsdp2", "dry_run=true",
        folder=tmp_path,
    )  # fmt: skip
    assert "Fits a card of 80 GiB" in plan
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_of_ones_own_comes_before_the_packaged_configuration(
    installed: Path, tmp_path: Path
) -> None:
    """A new experiment, and a file that takes the place of the packaged one."""
    mine = tmp_path / "mine"
    (mine / "experiment").mkdir(parents=True)
    (mine / "experiment" / "ours.yaml").write_text("# @package _global_\nseed: 71\n")
    (mine / "optimizer").mkdir()
    shutil.copy(ROOT / "conf" / "optimizer" / "tiny.yaml", mine / "optimizer" / "ours.yaml")
    (mine / "logger").mkdir()
    packaged = (ROOT / "conf" / "logger" / "none.yaml").read_text()
    (mine / "logger" / "none.yaml").write_text(packaged.replace("project: null", "project: ours"))
    chosen = ["experiment=ours", "optimizer=ours", "logger=none"]
    for option in (["--config-dir", "mine"], [f"--config-dir={mine}"]):
        printed = run(
            installed / "mempo", "train", *option, *chosen, "--cfg", "job", folder=tmp_path
        )
        config = yaml.safe_load(printed)
        assert config["seed"] == 71
        assert config["logger"]["project"] == "ours"
        tiny = yaml.safe_load((ROOT / "conf" / "optimizer" / "tiny.yaml").read_text())
        assert config["optimizer"]["learning_rate"] == tiny["learning_rate"]


def test_settings_are_completed(installed: Path, tmp_path: Path) -> None:
    typed = "mempo train algorithm=mempo_"
    script = run(installed / "mempo", "--completion", "bash", folder=tmp_path)
    (tmp_path / "complete.sh").write_text(
        f"{script}\nCOMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_CWORD=2\n"
        f'COMP_WORDS=({typed})\n_mempo\necho "${{COMPREPLY[*]}}"\n'
    )
    bash = installed / "bash"
    bash.symlink_to(shutil.which("bash") or "bash")
    offered = run(bash, str(tmp_path / "complete.sh"), folder=tmp_path)
    names = ("paper", "plus", "reference")
    assert offered.split() == [f"algorithm=mempo_{name}" for name in names]


def test_the_extras_are_the_engines_that_the_requirements_pin() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, file in (("cpu", "requirements.txt"), ("gpu", "requirements-gpu.txt")):
        lines = (ROOT / file).read_text().splitlines()
        assert extras["optional-dependencies"][extra] == [
            line for line in lines if line.startswith("vllm")
        ]
