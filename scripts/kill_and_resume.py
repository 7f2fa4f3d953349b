"""Kills runs at every stage, resumes them, and compares each with one that was left alone.

    python scripts/kill_and_resume.py --kills 20
    python scripts/kill_and_resume.py --kills 20 --stages saving after

The stages, as they are seen from outside by the run's output and files: the supervised ``start``;
``before``, from there to the first epoch, with ``before_evaluation`` in its last third; an
``epoch``; a ``checkpoint``; ``saving`` the model; the evaluation ``after``; the ``end``; and
``any`` moment. A kill is SIGKILL of all processes of the run, or SIGTERM, at a random moment of the
stage. Then the run goes on with resume=auto, and is killed again, up to ``--chain`` times; then it
is left to end.

At the end its folder must be that of the run that was left alone: the same names, every epoch once
with equal numbers, equal trajectories and evaluations, the model's files byte by byte, and the last
checkpoint's weights and optimizer states bitwise. Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ("seconds/", "peak_gib/")
SETTINGS = ("experiment=debug", "logger=none", "callbacks.progress_bars=false")
LOOK_EVERY_SECONDS = 0.002


class Seen:
    """A run from outside: its folder, its cache, and what it has printed since it was started."""

    def __init__(self, folder: Path, name: str) -> None:
        self.run, self.cache = folder / name, folder / f"{name}-cache"
        self.output = folder / f"{name}.txt"
        self.epochs_before = self.epochs()

    def says(self, text: str) -> bool:
        return text in self.output.read_text(encoding="utf-8", errors="replace")

    def has(self, pattern: str) -> bool:
        return any(self.run.glob(pattern))

    def epochs(self) -> int:
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def has_started(self) -> bool:
        return self.says("supervised start: /")

    def evaluated(self, stage: str) -> bool:
        try:
            return stage in json.loads((self.run / "evaluation.json").read_text(encoding="utf-8"))
        except OSError:
            return False


@dataclass(frozen=True)
class Stage:
    """When a run enters it and leaves it, and the part of it that is left alone."""

    begins: Callable[[Seen], bool]
    is_over: Callable[[Seen], bool]
    spared: float = 0.0


STAGES = {
    "start": Stage(lambda seen: seen.says("training it now"), Seen.has_started),
    "before": Stage(Seen.has_started, lambda seen: seen.evaluated("before")),
    "before_evaluation": Stage(Seen.has_started, lambda seen: seen.evaluated("before"), 0.7),
    "epoch": Stage(
        lambda seen: seen.evaluated("before") and seen.has_started(),
        lambda seen: seen.epochs() > seen.epochs_before,
    ),
    "checkpoint": Stage(
        lambda seen: seen.epochs() > seen.epochs_before,
        lambda seen: seen.has(f"checkpoints/epoch-{seen.epochs():05d}.ckpt"),
    ),
    "saving": Stage(lambda seen: seen.has("model.tmp"), lambda seen: seen.has("model/config.json")),
    "after": Stage(
        lambda seen: seen.has("model/config.json"), lambda seen: seen.evaluated("after")
    ),
    "end": Stage(lambda seen: seen.evaluated("after"), lambda seen: seen.says("written to")),
    "any": Stage(lambda seen: True, lambda seen: seen.says("written to")),
}


def main() -> int:
    """Runs all of it and prints what was found."""
    options = parse()
    rng = random.Random(options.seed)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = [*SETTINGS, f"trainer.max_epochs={options.epochs}", *options.settings]
        seconds = watch_whole(Seen(folder, "straight"), settings)
        print("seconds:", {stage: round(taken, 2) for stage, taken in seconds.items()}, flush=True)
        for stage in options.stages or [one for one in STAGES if one != "any"]:
            kills = 0
            while kills < options.kills:
                clear(folder, "killed")
                caught = 0
                chain = min(options.chain, options.kills - kills)
                for _ in range(chain):
                    seen = Seen(folder, "killed")
                    if stage == "start":
                        shutil.rmtree(seen.cache, ignore_errors=True)
                    caught += kill_once(seen, settings, STAGES[stage], seconds[stage], rng)
                seen = Seen(folder, "killed")
                run_to_end(seen, settings)
                found = [f"{stage}: {one}" for one in differences(folder / "straight", seen.run)]
                faults += found
                kills += chain
                told = "; ".join(found) or "nothing different"
                print(f"{stage}: {kills} kills, {caught} of {chain} within it; {told}", flush=True)
    print(f"{len(faults)} faults")
    return min(len(faults), 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how often in each stage")
    parser.add_argument("--chain", type=int, default=4, help="kills of a run before it may end")
    parser.add_argument("--epochs", type=int, default=2, help="of every run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--stages", nargs="*", choices=STAGES, help="all but any")
    parser.add_argument("--settings", nargs="*", default=[], metavar="SETTING=VALUE")
    return parser.parse_args()


def start(seen: Seen, settings: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "train.py"), *settings]
    command += [f"run_dir={seen.run}", f"cache_dir={seen.cache}", "resume=auto"]
    with seen.output.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
        )


def run_to_end(seen: Seen, settings: list[str]) -> None:
    """Lets a run end; stops this program where it does not end well."""
    check(seen, start(seen, settings).wait())


def check(seen: Seen, code: int | None) -> None:
    if code not in (None, 0):
        raise SystemExit(f"the run ended by itself:\n{seen.output.read_text()[-3000:]}")


def watch_whole(seen: Seen, settings: list[str]) -> dict[str, float]:
    """Runs from nothing to the end; how many seconds each stage took, of an epoch the first."""
    process = start(seen, settings)
    begun: dict[str, float] = {}
    taken: dict[str, float] = {}
    while process.poll() is None:
        now = time.monotonic()
        for name, stage in STAGES.items():
            if name not in begun and stage.begins(seen):
                begun[name] = now
            if name in begun and name not in taken and stage.is_over(seen):
                taken[name] = now - begun[name]
        time.sleep(LOOK_EVERY_SECONDS)
    check(seen, process.wait())
    return {name: taken.get(name, 0.05) for name in STAGES}


def kill_once(
    seen: Seen, settings: list[str], stage: Stage, seconds: float, rng: random.Random
) -> bool:
    """Starts the run and kills it in the stage; whether it was still within it. A run that ends
    before it comes to the stage is let go."""
    process = start(seen, settings)
    while process.poll() is None and not stage.begins(seen):
        time.sleep(LOOK_EVERY_SECONDS)
    time.sleep(rng.uniform(stage.spared * seconds, seconds))
    check(seen, process.poll())
    inside = process.poll() is None and not stage.is_over(seen)
    with contextlib.suppress(ProcessLookupError):  # it had just ended
        if rng.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.terminate()
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return inside


def clear(folder: Path, name: str) -> None:
    """A new run, with the start of the run that was left alone."""
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.rmtree(folder / f"{name}-cache", ignore_errors=True)
    shutil.copytree(folder / "straight-cache", folder / f"{name}-cache")


def differences(straight: Path, killed: Path) -> Iterator[str]:
    """What differs between the two runs, in words."""
    names = [sorted(left_names(run)) for run in (straight, killed)]
    if names[0] != names[1]:
        yield f"names differ: {sorted({*names[0]} ^ {*names[1]})}"
    lines = [list(metrics(run)) for run in (straight, killed)]
    if lines[0] != lines[1]:
        yield f"metrics.jsonl differs; its epochs are {[line['epoch'] for line in lines[1]]}"
    models = [f"model/{path.name}" for path in (straight / "model").iterdir()]
    for file in ("trajectories.jsonl", "evaluation.json", *models):
        path = killed / file
        if not path.exists() or path.read_bytes() != (straight / file).read_bytes():
            yield f"{file} differs"
    states = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
        for run in (straight, killed)
    ]
    for name in ("state_dict", "optimizer_states", "lr_schedulers", "epoch"):
        if not same(states[0][name], states[1][name]):
            yield f"{name} of last.ckpt differs"


def left_names(run: Path) -> Iterator[str]:
    """What a run left, without its logger's files."""
    for path in run.rglob("*"):
        name = str(path.relative_to(run))
        if not name.startswith("wandb"):
            yield name


def metrics(run: Path) -> Iterator[dict[str, Any]]:
    """A run's epochs, without what is measured by a clock."""
    for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        yield {key: value for key, value in line.items() if not key.startswith(MEASURED)}


def same(one: Any, other: Any) -> bool:
    """Equal, tensors bitwise."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


if __name__ == "__main__":
    raise SystemExit(main())
