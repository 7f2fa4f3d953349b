"""AdamW over what a model trains, by one fused kernel where the device has it."""

from __future__ import annotations

import torch

FUSED_BY_DEFAULT = ("cuda",)
"""Devices on which a step is one kernel unless ``optimizer.fused`` says otherwise. On CPUs torch
has one as well, which rounds differently."""


def adamw(
    model: torch.nn.Module,
    device: torch.device,
    fused: bool | None,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
) -> torch.optim.AdamW:
    """AdamW over the parameters of ``model`` that need a gradient; ``fused`` ``None`` goes by the
    device."""
    if fused is None:
        fused = device.type in FUSED_BY_DEFAULT
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=learning_rate,
        betas=betas,
        weight_decay=weight_decay,
        # Not False, which would choose the slow loop over parameters as well.
        fused=True if fused else None,
    )
