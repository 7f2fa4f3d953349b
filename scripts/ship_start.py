"""Puts a supervised start that ``stage=sft`` trained into the package.

    python train.py experiment=long_horizon stage=sft
    python scripts/ship_start.py

Takes the start that these settings (and further ones that are given) have in the cache, and writes
it with its command, versions and hashes to ``mempo/demonstrations/shipped/``.
"""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mempo.command.cli import compose
from mempo.demonstrations.shipped import SHIPPED, write_record
from mempo.demonstrations.start import start_folder, supervised_key
from mempo.runtime.cache import cached_path


def main(overrides: list[str]) -> None:
    """Copies and prints the folder; ends with a sentence where nothing was trained."""
    config = compose("train", ["experiment=long_horizon", "stage=sft", *overrides])
    trained = cached_path(config.cache_dir, "sft", supervised_key(config, start_folder(config)))
    told = [override for override in overrides if not override.startswith("cache_dir=")]
    command = " ".join(["python train.py experiment=long_horizon stage=sft", *told])
    if not trained.is_dir():
        raise SystemExit(f"{trained}: not trained yet; run: {command}")
    shutil.rmtree(SHIPPED, ignore_errors=True)
    shutil.copytree(trained, SHIPPED)
    for file in SHIPPED.iterdir():
        file.chmod(0o644)
    packages = {name: version(name) for name in ("torch", "transformers", "lightning")}
    notes = {"command": command, "python": platform.python_version(), "packages": packages}
    write_record(config, SHIPPED, notes)
    print(f"{trained} -> {SHIPPED}")


if __name__ == "__main__":
    main(sys.argv[1:])
