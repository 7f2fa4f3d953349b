"""AdamW in one kernel (around section 8)."""

from __future__ import annotations

import math

import pytest
import torch

from mempo.training.adamw import adamw

CPU = torch.device("cpu")


def stepped(fused: bool | None) -> tuple[torch.optim.AdamW, torch.Tensor]:
    """One step from [2, -4] with the gradient [0.5, -8]."""
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[2.0, -4.0]])
    frozen = torch.nn.Linear(2, 1).requires_grad_(False)
    model = torch.nn.Sequential(layer, frozen)
    optimizer = adamw(model, CPU, fused, 0.1, (0.9, 0.999), 0.01)
    layer.weight.grad = torch.tensor([[0.5, -8.0]])
    optimizer.step()
    return optimizer, layer.weight.detach()


@pytest.mark.parametrize("fused", [None, True, False])
def test_a_first_step_is_the_learning_rate_along_the_sign_and_decays(fused: bool | None) -> None:
    """x (1 - 0.1 * 0.01) - 0.1 sign(g): a first step's two means are g and g squared."""
    optimizer, found = stepped(fused)
    expected = [2.0 * 0.999 - 0.1, -4.0 * 0.999 + 0.1]
    assert found[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert len(optimizer.param_groups[0]["params"]) == 1


def test_the_device_chooses() -> None:
    """On CPUs the default is torch's own, to the bit; a GPU gets the kernel."""
    weights = torch.nn.Parameter(torch.tensor([[2.0, -4.0]]))
    weights.grad = torch.tensor([[0.5, -8.0]])
    torch.optim.AdamW([weights], lr=0.1, weight_decay=0.01).step()
    optimizer, found = stepped(None)
    assert torch.equal(found, weights.detach())
    assert not optimizer.defaults["fused"]
    assert stepped(True)[0].defaults["fused"] is True
    model = torch.nn.Linear(2, 1)
    on_gpu = adamw(model, torch.device("cuda"), None, 0.1, (0.9, 0.999), 0.0)
    assert on_gpu.defaults["fused"] is True
    off = adamw(model, torch.device("cuda"), False, 0.1, (0.9, 0.999), 0.0)
    assert not off.defaults["fused"]
    assert math.isclose(on_gpu.defaults["lr"], 0.1)
