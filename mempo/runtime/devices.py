"""Which device a thread computes on."""

from __future__ import annotations

from collections.abc import Callable

import torch


def use_device(
    device: torch.device, set_gpu: Callable[[torch.device], None] = torch.cuda.set_device
) -> None:
    """Makes ``device`` the current one of this thread, where it is a GPU. Every thread of a process
    has its own, and begins with GPU 0."""
    if device.type == "cuda":
        set_gpu(device)
