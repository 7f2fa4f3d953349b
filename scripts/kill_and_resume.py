"""Kills a run again and again, resumes it, and compares it with one that was left alone.

    python scripts/kill_and_resume.py --kills 20

Every kill is SIGKILL of all processes of the run, at a random moment: most between the first and a
few epochs after the start, some before. Then the run goes on with resume=auto. At the end the files
of both runs must hold every epoch once with equal numbers, the trajectories must be equal, and so
must the last checkpoints, bitwise. Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ("seconds/", "peak_gib/")


def main() -> int:
    """Runs both and prints what was found."""
    options = parse()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        straight, killed = Path(folder) / "straight", Path(folder) / "killed"
        command = [
            *(sys.executable, str(ROOT / "train.py"), "experiment=debug"),
            *("evaluation.enabled=false", "logger=none", "callbacks.progress_bars=false"),
            *(f"trainer.max_epochs={options.epochs}", "trainer.checkpoint_every=1"),
            *(f"cache_dir={folder}/cache", *options.settings),
        ]
        subprocess.run([*command, f"run_dir={straight}"], check=True, cwd=ROOT)
        for number in range(options.kills):
            epochs = kill_once([*command, f"run_dir={killed}", "resume=auto"], killed, rng)
            print(f"kill {number + 1}: {epochs} epochs in metrics.jsonl", flush=True)
        subprocess.run([*command, f"run_dir={killed}", "resume=auto"], check=True, cwd=ROOT)
        faults = [*differences(straight, killed, options.epochs)]
    print("\n".join(faults) or f"{options.kills} kills, nothing lost, nothing different")
    return min(len(faults), 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how often to kill the run")
    parser.add_argument("--epochs", type=int, default=60, help="of the run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="further settings")
    return parser.parse_args()


def kill_once(command: list[str], run: Path, rng: random.Random) -> int:
    """Starts the run, kills it, and counts the epochs that are written then."""
    metrics = run / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, cwd=ROOT
    )
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0.0, 15.0))
    else:
        while process.poll() is None and (
            not metrics.exists() or metrics.stat().st_mtime_ns == before
        ):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 4.0))
    if process.poll() not in (None, 0):
        assert process.stderr is not None
        raise SystemExit(f"the run ended by itself:\n{process.stderr.read().decode()[-3000:]}")
    with contextlib.suppress(ProcessLookupError):  # it had just finished
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def differences(straight: Path, killed: Path, epochs: int) -> list[str]:
    """What differs between the two runs, in words."""
    found: list[str] = []
    runs = [
        [
            {key: value for key, value in json.loads(line).items() if not key.startswith(MEASURED)}
            for line in (run / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (straight, killed)
    ]
    if [line["epoch"] for line in runs[1]] != list(range(epochs)):
        found.append(f"epochs of metrics.jsonl: {[line['epoch'] for line in runs[1]]}")
    found += [
        f"metrics of epoch {a['epoch']} differ" for a, b in zip(*runs, strict=False) if a != b
    ]
    texts = [(run / "trajectories.jsonl").read_text().splitlines() for run in (straight, killed)]
    if Counter(texts[0]) != Counter(texts[1]):
        found.append(f"trajectories differ: {len(texts[0])} and {len(texts[1])} lines")
    states: list[Any] = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
        for run in (straight, killed)
    ]
    found += [
        f"{name} differs"
        for name, value in states[0]["state_dict"].items()
        if not torch.equal(value, states[1]["state_dict"][name])
    ]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
