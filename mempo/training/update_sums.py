"""The sums of an epoch's micro-batches over all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from torchmetrics import Metric

TOKEN_MEANS: Final = {
    "clipped_sum": "update/clip_share",
    "dual_clipped_sum": "update/dual_clip_share",
    "ratio_sum": "update/ratio_mean",
    "kl_sum": "update/kl_mean",
    "entropy_sum": "update/entropy_mean",
    "mismatch_sum": "engine/mismatch_mean",
    "importance_sum": "update/importance_mean",
}
"""Sums of ``policy_loss`` and the names under which their means per policy token are logged."""

SUMS: Final = ("loss", "tokens", *TOKEN_MEANS)
MAXIMA: Final = ("mismatch_max",)


class UpdateSums(Metric):
    """``SUMS`` and ``MAXIMA`` of what ``policy_loss`` gives for each micro-batch, in float64.

    ``update`` takes one micro-batch, ``compute`` gives the values over all processes, each of which
    must call it, and ``reset`` begins the next epoch. What no micro-batch of any process had (KL
    without a reference, say) is left out, so ``seen`` counts it. Nothing of it is part of a
    checkpoint.
    """

    full_state_update = False
    sums: Tensor
    maxima: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        wide = torch.float64
        self.add_state("sums", torch.zeros(len(SUMS), dtype=wide), dist_reduce_fx="sum")
        self.add_state("maxima", torch.zeros(len(MAXIMA), dtype=wide), dist_reduce_fx="max")
        self.add_state("seen", torch.zeros(len(SUMS) + len(MAXIMA)), dist_reduce_fx="sum")

    def update(self, values: Mapping[str, Tensor]) -> None:
        """Adds one micro-batch; other values than ``SUMS`` and ``MAXIMA`` are left aside."""
        one = [float(values.get(key, 0.0)) for key in (*SUMS, *MAXIMA)]
        new = torch.tensor(one, dtype=torch.float64, device=self.sums.device)
        self.sums += new[: len(SUMS)]
        self.maxima = torch.maximum(self.maxima, new[len(SUMS) :])
        self.seen += torch.tensor(
            [float(key in values) for key in (*SUMS, *MAXIMA)], device=self.seen.device
        )

    def compute(self) -> dict[str, float]:
        """The values by name."""
        values = [*self.sums.tolist(), *self.maxima.tolist()]
        return {
            key: value
            for key, value, seen in zip((*SUMS, *MAXIMA), values, self.seen.tolist(), strict=True)
            if seen
        }
