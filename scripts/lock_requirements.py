"""Resolves the requirements for each Python and writes the lock files (``make locks``).

A lock file names the exact version of every package. Versions that stand in one already are kept
where they still fit; ``--upgrade`` takes the newest. Needs ``uv`` (``pip install uv``).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = Path("requirements/locks")

PYTHONS = ("3.11", "3.12", "3.13")

# What a platform with few or no binary packages would change is not looked at.
PLATFORM = "x86_64-manylinux_2_28"

HEADER = """\
# Written by `make locks`, not by hand: {source} for Python {python} on Linux (x86_64).
# Every package is listed, so it is installed with --no-deps (`make install`).
"""


def lock_file(name: str, python: str) -> Path:
    """``requirements/locks/cpu-py311.txt`` for ``cpu`` and ``3.11``."""
    return LOCKS / f"{name}-py{python.replace('.', '')}.txt"


def compile_lock(uv: str, name: str, python: str, source: str, *options: str) -> None:
    """Resolves ``source`` and writes its lock file. Ends the program when nothing fits."""
    file = lock_file(name, python)
    print(f"{file} from {source}", flush=True)
    done = subprocess.run(
        [
            *(uv, "pip", "compile", source, "--output-file", str(file)),
            *("--python-version", python, "--python-platform", PLATFORM, "--no-python-downloads"),
            *("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url"),
            *("--no-emit-find-links", *options),
        ],
        cwd=ROOT,
    )
    if done.returncode:
        sys.exit(f"error: {source} has no solution for Python {python}; uv's reason stands above")
    path = ROOT / file
    path.write_text(HEADER.format(source=source, python=python) + path.read_text("utf-8"), "utf-8")


def main(options: list[str]) -> None:
    """Writes every lock file."""
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    if not Path(uv).exists():
        sys.exit("error: uv, which resolves the requirements, was not found: pip install uv")
    for python in PYTHONS:
        overrides = ("--override", "requirements/overrides-cpu.txt")
        compile_lock(uv, "cpu", python, "requirements.txt", *overrides, *options)
        compile_lock(uv, "gpu", python, "requirements-gpu.txt", *options)
        engines = [part for name in ("cpu", "gpu") for part in ("-c", str(lock_file(name, python)))]
        compile_lock(uv, "dev", python, "requirements-dev.txt", *engines, *options)


if __name__ == "__main__":
    main(sys.argv[1:])
