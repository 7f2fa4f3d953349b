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
with equal numbers, trajectories, evaluations and the model's files byte by byte, and the weights
and optimizer states of checkpoints bitwise. What is not is named, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
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
EPOCHS = 2
SETTINGS = (
    *("experiment=debug", "logger=none", "callbacks.progress_bars=false"),
    f"trainer.max_epochs={EPOCHS}",
)
LOOK_EVERY_SECONDS = 0.001
_AFTER_LATE = 0.85
ENDS_WITHIN_SECONDS = 120  # after SIGTERM
WATCHED = ("evaluation.json", "checkpoints/last.ckpt")
GONE_ON_FROM = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")


class Seen:
    """A run from outside, since this object was made: its folder, its cache, and what it prints."""

    def __init__(self, folder: Path, name: str) -> None:
        self.run, self.cache = folder / name, folder / f"{name}-cache"
        self.output = folder / f"{name}.txt"
        self._before = {path: self._stamp(path) for path in WATCHED}

    def says(self, text: str) -> bool:
        return text in self._printed()

    def has_started(self) -> bool:
        return self.says("supervised start: /")

    def ended_epoch(self) -> int:
        """The number of the last epoch that it told, from 1, or 0."""
        told = re.findall(r"^epoch (\d+)/", self._printed(), re.MULTILINE)
        return int(told[-1]) if told else 0

    def has_checkpoint(self, epoch: int) -> bool:
        return (self.run / "checkpoints" / f"epoch-{epoch:05d}.ckpt").exists()

    def has_model(self) -> bool:
        return (self.run / "model" / "config.json").exists()

    def has_changed(self, path: str) -> bool:
        """Whether one of what is watched is there and is not what it was."""
        return self._stamp(path) not in (None, self._before[path])

    def collects(self) -> bool:
        """Whether it is behind its start: a new run has written its evaluation then, and a resumed
        one has set its link to the last checkpoint anew."""
        return self.has_changed("evaluation.json") or self.has_changed("checkpoints/last.ckpt")

    def evaluated(self, stage: str) -> bool:
        path = self.run / "evaluation.json"
        return path.exists() and stage in json.loads(path.read_text(encoding="utf-8"))

    def _printed(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def _stamp(self, path: str) -> tuple[int, int] | None:
        try:
            found = (self.run / path).lstat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


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
    "epoch": Stage(Seen.collects, lambda seen: seen.ended_epoch() > 0),
    "checkpoint": Stage(
        lambda seen: seen.ended_epoch() > 0, lambda seen: seen.has_checkpoint(seen.ended_epoch())
    ),
    "saving": Stage(lambda seen: seen.collects() and seen.has_checkpoint(EPOCHS), Seen.has_model),
    "after": Stage(
        lambda seen: seen.collects() and seen.has_model(), lambda seen: seen.evaluated("after")
    ),
    "end": Stage(
        lambda seen: seen.collects() and seen.evaluated("after"),
        lambda seen: seen.says("written to"),
    ),
    "any": Stage(lambda seen: True, lambda seen: seen.says("written to")),
}


def main() -> int:
    """Runs all of it and prints what was found."""
    options = parse()
    rng = random.Random(options.seed)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = [*SETTINGS, *options.settings]
        seconds = watch_whole(Seen(folder, "straight"), settings)
        print("seconds:", {stage: round(taken, 2) for stage, taken in seconds.items()}, flush=True)
        for stage in options.stages or [one for one in STAGES if one != "any"]:
            kills = 0
            while kills < options.kills:
                most = min(options.chain, options.kills - kills)
                within = kill_and_end(folder, settings, stage, seconds[stage], most, rng)
                found = [*differences(folder / "straight", folder / "killed")]
                faults += found
                kills += len(within)
                if not all(within):  # later runs find what the first compiled, and are quicker
                    seconds[stage] *= _AFTER_LATE
                print(
                    f"{stage}: {kills} kills, {sum(within)} of the last {len(within)} within it; "
                    f"{'; '.join(found) or 'nothing different'}",
                    flush=True,
                )
    print(f"{len(faults)} faults")
    return min(len(faults), 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how often in each stage")
    parser.add_argument("--chain", type=int, default=4, help="kills of a run before it may end")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--stages", nargs="*", choices=STAGES, help="all but any")
    parser.add_argument("--settings", nargs="*", default=[], metavar="SETTING=VALUE")
    return parser.parse_args()


def start(seen: Seen, settings: list[str]) -> subprocess.Popen[bytes]:
    # It must not keep this program, which looks at it, from running.
    command = ["nice", "-n", "10", sys.executable, str(ROOT / "train.py"), *settings]
    command += [f"run_dir={seen.run}", f"cache_dir={seen.cache}", "resume=auto"]
    with seen.output.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
        )


def run_to_end(seen: Seen, settings: list[str]) -> None:
    """Lets a run end; stops this program where it does not end well."""
    check(seen, start(seen, settings).wait())


def check(seen: Seen, code: int) -> None:
    if code != 0:
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


def kill_and_end(
    folder: Path, settings: list[str], stage: str, seconds: float, most: int, rng: random.Random
) -> list[bool]:
    """A new run, killed at most so many times and then left to end; of each kill whether it was
    within the stage, the last one at most not. It has the supervised start of the run that was left
    alone, unless that is the stage."""
    for name in ("killed", "killed-cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if stage != "start":
        shutil.copytree(folder / "straight-cache", folder / "killed-cache")
    within: list[bool] = []
    for _ in range(most):
        outcome = kill_once(Seen(folder, "killed"), settings, STAGES[stage], seconds, rng)
        if outcome is None:
            return within
        within.append(outcome)
        if not outcome:  # it was late: a resumed run may have the stage behind it
            break
    run_to_end(Seen(folder, "killed"), settings)
    return within


def kill_once(
    seen: Seen, settings: list[str], stage: Stage, seconds: float, rng: random.Random
) -> bool | None:
    """Starts the run and kills it in the stage; whether it was still within it. None where it ended
    before."""
    process = start(seen, settings)
    while process.poll() is None and not stage.begins(seen):
        time.sleep(LOOK_EVERY_SECONDS)
    time.sleep(rng.uniform(stage.spared * seconds, seconds))
    if process.poll() is not None:
        check(seen, process.returncode)
        return None
    inside = not stage.is_over(seen)
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        if rng.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.terminate()
    process.wait(ENDS_WITHIN_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return inside


def differences(straight: Path, killed: Path) -> Iterator[str]:
    """What differs between the two runs, each with the file's name."""
    names = [left_names(run) for run in (straight, killed)]
    for name in sorted(names[0] - names[1]):
        yield f"{name} is missing"
    for name in sorted(names[1] - names[0]):
        yield f"{name} is left over"
    for name in sorted(names[0] & names[1]):
        if not name.startswith(".hydra/") and content(straight / name) != content(killed / name):
            yield f"{name} differs"


def left_names(run: Path) -> set[str]:
    """What a run left, without its logger's files."""
    found = {str(path.relative_to(run)) for path in run.rglob("*")}
    return {name for name in found if not name.startswith("wandb")}


def content(path: Path) -> Any:
    """What must be equal in two runs: of a checkpoint what training goes on from, of metrics all
    but what a clock measures, and every byte of the rest."""
    if path.is_dir():
        return None
    if path.suffix == ".ckpt":
        return Exact(torch.load(path, weights_only=True, map_location="cpu"))
    if path.name == "metrics.jsonl":
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        return [{k: v for k, v in line.items() if not k.startswith(MEASURED)} for line in lines]
    return path.read_bytes()


@dataclass(frozen=True)
class Exact:
    """A checkpoint, which equals another one where its tensors do bitwise."""

    checkpoint: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Exact):
            return NotImplemented
        return all(same(self.checkpoint[key], other.checkpoint[key]) for key in GONE_ON_FROM)


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
