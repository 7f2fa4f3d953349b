"""Ends an engine on each of two processes while they go on exchanging, or one of them fails.

Run by test_ending.py as ``ending_run.py MODEL_FOLDER CASE`` with torch's variables of the
environment. Prints a line for each step; ends with 1 and the message where ``LostProcessError``
comes.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.distributed as dist

from mempo.config import EngineConfig
from mempo.engine.interface import Sampling
from mempo.engine.start_arguments import Use
from mempo.engine.vllm_engine import Engine
from mempo.runtime.gather import gather_objects, is_distributed
from mempo.runtime.processes import finish_collectives_at_exit
from mempo.training.waiting import LostProcessError, awaiting_others

TIMEOUT_S = {"engines": 300, "silent": 3}


def sampled(folder: str, rank: int) -> Engine:
    engine = Engine(folder, EngineConfig(max_num_seqs=4, cpu_kv_cache_gib=0.05), Use())
    engine.submit("one", [1, 2, 3 + rank], 4, 0, Sampling())
    while engine.has_unfinished():
        engine.step()
    return engine


def main(folder: str, case: str) -> None:
    rank, timeout_s = int(os.environ["RANK"]), TIMEOUT_S[case]
    finish_collectives_at_exit()
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    with awaiting_others(timeout_s):
        gather_objects(rank)
        if case == "engines":
            engine = sampled(folder, rank)
            if rank == 0:
                engine.close()
            assert gather_objects(rank) == [0, 1]
            print("exchanged", flush=True)
            try:
                if rank == 1:
                    raise ValueError("broken on rank 1")
                gather_objects(rank)
            finally:
                engine.close()
                assert is_distributed()
        elif rank == 1:
            time.sleep(120)
        else:
            gather_objects(rank)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LostProcessError as error:
        print(f"lost: {error}", flush=True)
        sys.exit(1)
