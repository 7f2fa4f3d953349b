"""Trains one epoch, then goes on from its checkpoint to the second, and counts collections.

Run by test_training.py as ``resume_run.py RUN_DIR CACHE_DIR``; prints one JSON line, last.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mempo.cli import compose
from mempo.quiet import quiet_libraries


def main(run_dir: str, cache_dir: str) -> None:
    quiet_libraries()
    from mempo.data.tasks import load_task_sets
    from mempo.rollout import Rollout
    from mempo.training import reinforce, supervised_start

    collected: list[int] = []
    collect = Rollout.collect

    def counted(self: Rollout, *arguments: Any, **named: Any) -> Any:
        collected.append(named["epoch"])
        return collect(self, *arguments, **named)

    Rollout.collect = counted  # type: ignore[method-assign]
    for epochs, checkpoint in ((1, None), (2, f"{run_dir}/checkpoints/last.ckpt")):
        config = compose(
            "train",
            [
                "experiment=debug",
                "evaluation.enabled=false",
                f"trainer.max_epochs={epochs}",
                f"ckpt_path={checkpoint or 'null'}",
                f"cache_dir={cache_dir}",
            ],
            run_dir=run_dir,
        )
        reinforce(config, supervised_start(config), load_task_sets(config))
    print(json.dumps(collected))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
