"""Ends right after an exchange between two CPU processes, where threads of gloo still work.

Run by test_processes.py under torchrun as ``exit_run.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

from mempo.runtime.processes import finish_collectives_at_exit


def main() -> None:
    finish_collectives_at_exit()
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1]) for _ in range(8)]
    exchanges = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for group in groups]
    for exchange in exchanges:
        assert exchange is not None
        exchange.wait()


if __name__ == "__main__":
    main()
