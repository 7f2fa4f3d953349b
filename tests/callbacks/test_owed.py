"""What a run that goes on still owes, on every process the same (around the method)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from callbacks.held_out_evaluation import HeldOutEvaluationCallback
from callbacks.saved_model import SavedModelCallback
from mempo.command.cli import compose
from mempo.runtime.checkpoint_files import checkpoint_path, note_made


def make_run(folder: Path, *, evaluated: tuple[str, ...], saved: bool) -> Path:
    """What a run leaves that has written its last checkpoint."""
    checkpoint = checkpoint_path(folder, 0)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"")
    (folder / "evaluation.json").write_text(json.dumps({stage: {} for stage in evaluated}))
    if "after" in evaluated:
        note_made(folder, "after")
    if saved:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        note_made(folder, "model")
    return folder


def owed(run_dir: Path) -> tuple[int, int]:
    """How much the callbacks leave to be done before the first epoch and after the last."""
    source = SimpleNamespace(before_collecting=[], when_finished=[])
    trainer: Any = SimpleNamespace(datamodule=source, ckpt_path="a checkpoint")
    module = cast(Any, None)
    SavedModelCallback(run_dir).on_fit_start(trainer, module)
    HeldOutEvaluationCallback(compose("train", run_dir=run_dir)).on_fit_start(trainer, module)
    return len(source.before_collecting), len(source.when_finished)


@pytest.mark.parametrize(
    ("evaluated", "saved", "expected"),
    [
        (("before", "after"), True, (0, 0)),
        (("before",), True, (0, 1)),
        (("before",), False, (0, 2)),
        ((), False, (1, 2)),
    ],
)
def test_what_is_owed(
    tmp_path: Path, evaluated: tuple[str, ...], saved: bool, expected: tuple[int, int]
) -> None:
    assert owed(make_run(tmp_path / "run", evaluated=evaluated, saved=saved)) == expected


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    found = owed(Path(folder) / f"of-{rank}")
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def test_the_first_process_says_what_is_owed(tmp_path: Path) -> None:
    """Two machines without a disk in common: the second one has none of the run's files, and
    evaluating by itself it would wait for ever."""
    make_run(tmp_path / "of-0", evaluated=("before",), saved=True)
    spawn(_rank, args=(str(tmp_path),), nprocs=2)
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [[0, 1]] * 2
