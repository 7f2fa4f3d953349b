"""What an engine's start may not change in the process that hosts it, and what it must find there.

vLLM reseeds random generators, sets torch's threads and precision, looks for the process's rank in
the environment, and looks at every loaded module.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from mempo.engine.start_arguments import Device
from mempo.runtime.gather import is_distributed


@contextmanager
def host_state_kept() -> Iterator[None]:
    """What vLLM changes in this process as it starts and loads weights is put back behind the
    block: it reseeds Python, NumPy and torch, and on GPUs leaves torch a single thread on the CPU
    and another precision of matrix products."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        with _random_states_kept():
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)


@contextmanager
def _random_states_kept() -> Iterator[None]:
    python_state, numpy_state, torch_state = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)


@contextmanager
def rank_in_environment(device: Device) -> Iterator[None]:
    """Within the block the environment names this process's rank and device, where vLLM looks for
    them in a run of several processes. Not every launcher sets them in each process."""
    before = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK")}
    if is_distributed():
        rank = torch.distributed.get_rank()
        index = torch.cuda.current_device() if device == "cuda" else rank
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(index))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def llvmlite_hidden() -> Iterator[None]:
    """Within the block one module of llvmlite is not among the loaded ones.

    When it starts, vLLM looks at every object of every loaded module and trips over llvmlite's
    library handle, which answers to any name. numba brings it, which the ``bm25s`` retriever uses.
    """
    name = "llvmlite.binding.ffi"
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module
