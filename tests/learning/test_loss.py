"""The policy loss (specification section 8)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mempo.config import LossConfig
from mempo.learning.loss import (
    LossInputs,
    NonFiniteTokenError,
    aggregation_weights,
    kl_divergence,
    policy_loss,
)

CONFIG = LossConfig()
NAN = math.nan


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def token_loss(ratio: float, advantage: float, **settings: Any) -> tuple[float, float]:
    """Loss and its derivative in log π of one token with the given ratio."""
    logp = tensor(math.log(ratio) - 1.0).requires_grad_()
    inputs = LossInputs(logp, tensor(-1.0), tensor(advantage), tensor(1), tensor(1))
    loss, _ = policy_loss(inputs, LossConfig(**settings))
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.item()


def loss_of(config: LossConfig, **tensors: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """``policy_loss`` of what ``step`` gives."""
    return policy_loss(LossInputs(**tensors), config)


def step(mask: list[int], **tensors: list[float]) -> dict[str, Any]:
    """Arguments of one call, with plain values where none are given."""
    n = len(mask)
    given = {name: tensor(*values) for name, values in tensors.items()}
    total = sum(mask) or 1
    return {
        "logprobs": tensor(*[-1.0] * n),
        "old_logprobs": tensor(*[-1.1] * n),
        "advantages": tensor(*[1.0] * n),
        "mask": torch.tensor(mask),
        "weights": tensor(*[1 / total] * n),
        "config": CONFIG,
        **given,
    }


# --- the clipped surrogate ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # clipped at 1.2
        (0.5, 2.0, -1.0, -1.0),  # the smaller of r·A and clip(r)·A
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),
        (2.9, -2.0, 5.8, 5.8),
        (5.0, -2.0, 6.0, 0.0),  # dual clip: 3 · 2
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_surrogate_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert token_loss(ratio, advantage) == pytest.approx((loss, gradient), abs=1e-12)


def test_settings_of_the_surrogate() -> None:
    assert token_loss(1.5, 1.0, clip_high=0.4)[0] == pytest.approx(-1.4, abs=1e-12)
    assert token_loss(0.5, -1.0, clip_low=0.3)[0] == pytest.approx(0.7, abs=1e-12)
    assert token_loss(9.0, -1.0, dual_clip=5.0)[0] == pytest.approx(5.0, abs=1e-12)


def test_log_ratio_is_clamped() -> None:
    wide: dict[str, Any] = {"clip_high": 1e12, "dual_clip": 1e12}
    loss, gradient = token_loss(math.exp(30), 1.0, **wide)
    assert loss == pytest.approx(-math.exp(20), rel=1e-12)
    assert gradient == 0.0
    assert token_loss(math.exp(-30), 1.0, **wide)[0] == pytest.approx(-math.exp(-20), rel=1e-12)
    assert token_loss(math.exp(7), 1.0, log_ratio_clamp=2.0, **wide)[0] == pytest.approx(
        -math.exp(2), rel=1e-12
    )


def test_without_old_logprobs_the_ratio_is_one_with_gradient() -> None:
    logp = tensor(-1.0, -2.0).requires_grad_()
    inputs = LossInputs(logp, None, tensor(3.0, -1.0), tensor(1, 1), tensor(0.5, 0.5))
    loss, metrics = policy_loss(inputs, CONFIG)
    loss.backward()
    assert loss.item() == pytest.approx(-1.0, abs=1e-12)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.5, 0.5], abs=1e-12)
    assert metrics["ratio_sum"].item() == 2.0


# --- aggregation ----------------------------------------------------------------------------


def test_prime_rl_2562_verl_5366_loss_does_not_depend_on_the_split() -> None:
    """100 tokens at 2.0 and 900 at 0.5: 0.65 for any split, and the same gradient."""
    advantages = -tensor(*[2.0] * 100, *[0.5] * 900)
    first, second = aggregation_weights([100, 900], "token_mean")
    weights = tensor(*[first] * 100, *[second] * 900)
    gradients = []
    for sizes in ([1000], [100, 900], [500, 500], [1, 999], [333, 333, 334], [125] * 8):
        logp = torch.full((1000,), -1.0, dtype=torch.float64, requires_grad=True)
        total = 0.0
        parts = zip(*(t.split(sizes) for t in (logp, advantages, weights)), strict=True)
        for part, advantage, w in parts:
            loss, _ = policy_loss(LossInputs(part, None, advantage, torch.ones_like(w), w), CONFIG)
            loss.backward()
            total += loss.item()
        assert total == pytest.approx(0.65, abs=1e-12)
        assert logp.grad is not None
        gradients.append(logp.grad)
    assert all(torch.allclose(g, gradients[0], rtol=0, atol=1e-15) for g in gradients)


def test_loss_does_not_depend_on_padding_or_shape() -> None:
    flat = step([1, 0, 1, 1], advantages=[1.0, 5.0, -2.0, 3.0])
    padded: dict[str, Any] = {
        name: torch.nn.functional.pad(value, (0, 4)).reshape(2, 4)
        if isinstance(value, Tensor)
        else value
        for name, value in flat.items()
    }
    assert loss_of(**flat)[0].item() == loss_of(**padded)[0].item()


def test_aggregation_weights_by_hand() -> None:
    assert aggregation_weights([100, 300], "token_mean") == [1 / 400, 1 / 400]
    assert aggregation_weights([100, 300], "trajectory_mean") == [1 / 200, 1 / 600]
    assert aggregation_weights([100, 0], "trajectory_mean") == [1 / 200, 0.0]
    assert aggregation_weights([0, 0], "token_mean") == [0.0, 0.0]
    assert aggregation_weights([], "token_mean") == []
    with pytest.raises(ValueError, match="negative"):
        aggregation_weights([-1], "token_mean")
    with pytest.raises(ValueError, match=r"loss\.aggregation=sum"):
        aggregation_weights([1], "sum")  # type: ignore[arg-type]


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean"])
def test_verl_7580_more_rounds_give_no_more_weight(aggregation: Any) -> None:
    tokens = [6 * 50, 50]
    weights = aggregation_weights(tokens, aggregation, equal_trajectories=True)
    shares = [n * w for n, w in zip(tokens, weights, strict=True)]
    assert shares == pytest.approx([0.5, 0.5], abs=1e-15)
    growing = aggregation_weights(tokens, "token_mean")
    assert [n * w for n, w in zip(tokens, growing, strict=True)] == pytest.approx([6 / 7, 1 / 7])


def test_trl_6365_constant_groups_stay_in_the_denominator() -> None:
    """Three constant groups of four: their tokens add 0 to the sum and count in the mean."""
    tokens = [10, 10, 10, 10]
    weight = aggregation_weights(tokens, "token_mean")[0]
    assert weight == 1 / 40
    advantages = [0.0] * 30 + [-2.0] * 10
    arguments = step([1] * 40, advantages=advantages, weights=[weight] * 40)
    arguments["old_logprobs"] = None
    assert loss_of(**arguments)[0].item() == pytest.approx(2.0 * 10 / 40, abs=1e-12)


def test_trl_6439_unirl_448_masked_tokens_are_not_in_the_mean() -> None:
    arguments = step([1, 1, 0, 0], advantages=[-1.0, -3.0, -100.0, -100.0])
    arguments["old_logprobs"] = None
    loss, metrics = loss_of(**arguments)
    assert loss.item() == pytest.approx(2.0, abs=1e-12)
    assert metrics["tokens"].item() == 2.0


def test_trl_6439_unirl_448_all_masked_row_gives_zero() -> None:
    arguments = step([0, 0, 0])
    arguments["logprobs"].requires_grad_()
    loss, metrics = loss_of(**arguments, engine_logprobs=tensor(NAN, NAN, NAN))
    loss.backward()
    assert loss.item() == 0.0
    assert arguments["logprobs"].grad.tolist() == [0.0, 0.0, 0.0]
    assert {name: m.item() for name, m in metrics.items()} == dict.fromkeys(metrics, 0.0)


# --- NaN and infinity -----------------------------------------------------------------------

EVERY_TERM = LossConfig(kl_coefficient=0.1, entropy_coefficient=0.2, importance_cap=2.0)
INPUTS = (
    "logprobs", "old_logprobs", "advantages", "weights", "ref_logprobs", "entropy",
    "engine_logprobs",
)  # fmt: skip


def full_step() -> dict[str, Any]:
    """Four tokens, the third an observation, with every term of the loss switched on."""
    arguments = step(
        [1, 1, 0, 1],
        advantages=[1.0, -1.0, 4.0, 0.5],
        ref_logprobs=[-1.2, -0.9, -0.5, -1.4],
        entropy=[0.3, 0.2, 0.9, 0.1],
        engine_logprobs=[-1.15, -1.0, -1.0, -1.3],
    )
    return {**arguments, "config": EVERY_TERM}


def run(arguments: dict[str, Any]) -> tuple[float, list[list[float]], dict[str, float]]:
    """Loss, gradients in log π and entropy, and metrics."""
    arguments["logprobs"].requires_grad_()
    arguments["entropy"].requires_grad_()
    loss, metrics = loss_of(**arguments)
    loss.backward()
    assert not any(m.requires_grad for m in metrics.values())
    gradients = [arguments[name].grad.tolist() for name in ("logprobs", "entropy")]
    return loss.item(), gradients, {name: m.item() for name, m in metrics.items()}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf, 1e300])
def test_skyrl_1635_masked_positions_change_nothing(name: str, bad: float) -> None:
    expected = run(full_step())
    arguments = full_step()
    arguments[name][2] = bad
    assert run(arguments) == expected
    assert [row[2] for row in expected[1]] == [0.0, 0.0]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_not_finite_at_a_policy_token_stops_and_names_the_positions(name: str, bad: float) -> None:
    arguments = full_step()
    arguments[name][1] = bad
    arguments[name][3] = bad
    with pytest.raises(FloatingPointError, match=rf"^{name} .*\[1, 3\]") as caught:
        loss_of(**arguments)
    assert isinstance(caught.value, NonFiniteTokenError)
    assert (caught.value.tensor, caught.value.positions) == (name, [1, 3])


# --- KL, entropy, importance weights --------------------------------------------------------


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_skyrl_1353_verl_6058_kl_values_and_gradients(estimator: Any) -> None:
    logp = tensor(-1.0, -2.0, -0.7).requires_grad_()
    reference = tensor(-1.5, -1.2, -0.7)
    d = [-0.5, 0.8, 0.0]  # log π_ref - log π
    values = {
        "k1": [0.5, -0.8, 0.0],
        "k2": [0.125, 0.32, 0.0],
        "k3": [math.exp(x) - x - 1 for x in d],
    }
    slopes = {"k1": [1.0, 1.0, 1.0], "k2": [0.5, -0.8, 0.0], "k3": [1 - math.exp(x) for x in d]}
    kl = kl_divergence(logp, reference, estimator)
    assert kl.tolist() == pytest.approx(values[estimator], abs=1e-12)

    config = LossConfig(kl_coefficient=0.1, kl_estimator=estimator)
    weights = tensor(0.2, 0.3, 0.5)
    ones, zeros = torch.ones_like(weights), torch.zeros_like(weights)
    inputs = LossInputs(logp, None, zeros, ones, weights, ref_logprobs=reference)
    loss, metrics = policy_loss(inputs, config)
    loss.backward()
    w = weights.tolist()
    assert logp.grad is not None
    assert loss.item() == pytest.approx(
        0.1 * sum(a * b for a, b in zip(w, values[estimator], strict=True)), abs=1e-12
    )
    assert logp.grad.tolist() == pytest.approx(
        [0.1 * a * b for a, b in zip(w, slopes[estimator], strict=True)], abs=1e-12
    )
    assert metrics["kl_sum"].item() == pytest.approx(sum(values[estimator]), abs=1e-12)
    assert metrics["policy_loss"].item() == 0.0


def test_k3_stays_finite_far_from_the_reference() -> None:
    far = kl_divergence(torch.tensor([-500.0]), torch.tensor([-1.0]), "k3")
    assert torch.isfinite(far).all()
    with pytest.raises(ValueError, match="k4"):
        kl_divergence(far, far, "k4")  # type: ignore[arg-type]


def test_entropy_bonus_lowers_the_loss() -> None:
    arguments = step([1, 0, 1], advantages=[0.0] * 3, entropy=[0.5, 9.0, 1.5])
    arguments["config"] = LossConfig(entropy_coefficient=0.1)
    arguments["entropy"].requires_grad_()
    loss, metrics = loss_of(**arguments)
    loss.backward()
    assert loss.item() == pytest.approx(-0.1, abs=1e-12)  # mean entropy 1
    assert arguments["entropy"].grad.tolist() == pytest.approx([-0.05, 0.0, -0.05], abs=1e-12)
    assert metrics["entropy_sum"].item() == 2.0


def test_importance_weights_are_truncated_and_carry_no_gradient() -> None:
    old = [math.log(0.4), math.log(0.4), math.log(0.4)]
    engine = [math.log(0.8), math.log(0.1), math.log(0.4)]  # ratios 0.5, 4 (cut to 2), 1
    arguments = step([1, 1, 1], old_logprobs=old, logprobs=old, engine_logprobs=engine)
    arguments["config"] = LossConfig(importance_cap=2.0)
    for name in ("logprobs", "old_logprobs", "engine_logprobs"):
        arguments[name].requires_grad_()
    loss, metrics = loss_of(**arguments)
    loss.backward()
    assert loss.item() == pytest.approx(-(0.5 + 2.0 + 1.0) / 3, abs=1e-12)
    assert arguments["logprobs"].grad.tolist() == pytest.approx(
        [-0.5 / 3, -2 / 3, -1 / 3], abs=1e-12
    )
    assert arguments["old_logprobs"].grad is None
    assert arguments["engine_logprobs"].grad is None
    assert metrics["importance_sum"].item() == pytest.approx(3.5, abs=1e-12)
    assert metrics["mismatch_sum"].item() == pytest.approx(math.log(2) + math.log(4), abs=1e-12)
    assert metrics["mismatch_max"].item() == pytest.approx(math.log(4), abs=1e-12)


def test_importance_weights_leave_kl_alone() -> None:
    arguments = step([1], advantages=[0.0], ref_logprobs=[-1.5], engine_logprobs=[-2.1])
    arguments["config"] = LossConfig(importance_cap=2.0, kl_coefficient=1.0, kl_estimator="k1")
    assert loss_of(**arguments)[0].item() == pytest.approx(0.5, abs=1e-12)


def test_mismatch_is_measured_without_a_cap_and_against_the_old_policy() -> None:
    arguments = step([1, 0], old_logprobs=[-1.1, -1.1], engine_logprobs=[-1.0, 5.0])
    loss, metrics = loss_of(**arguments)
    assert metrics["mismatch_sum"].item() == pytest.approx(0.1, abs=1e-12)
    assert loss.item() == pytest.approx(-math.exp(0.1), abs=1e-12)
    assert "importance_sum" not in metrics


# --- metrics and misuse ---------------------------------------------------------------------


def test_metrics_are_sums_over_policy_tokens() -> None:
    ratios = [1.5, 0.5, 5.0, 1.0, 9.0]
    arguments = step(
        [1, 1, 1, 1, 0],
        logprobs=[math.log(r) - 1.0 for r in ratios],
        old_logprobs=[-1.0] * 5,
        advantages=[1.0, -1.0, -1.0, 1.0, -1.0],
    )
    loss, metrics = loss_of(**arguments)
    assert metrics["tokens"].item() == 4
    assert metrics["clipped_sum"].item() == 2
    assert metrics["dual_clipped_sum"].item() == 1
    assert metrics["ratio_sum"].item() == pytest.approx(8.0, abs=1e-12)
    assert metrics["policy_loss"].item() == loss.item()
    assert loss.item() == pytest.approx((-1.2 + 0.8 + 3.0 - 1.0) / 4, abs=1e-12)


def test_low_precision_is_computed_in_float32() -> None:
    logp = torch.tensor([-1.0], dtype=torch.bfloat16, requires_grad=True)
    one = torch.ones(1)
    loss, _ = policy_loss(LossInputs(logp, torch.tensor([-1.01]), one, one, one), CONFIG)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.exp(0.01), abs=1e-6)


def test_empty_micro_batch() -> None:
    loss, metrics = loss_of(**step([], engine_logprobs=[]))
    assert loss.item() == 0.0
    assert metrics["mismatch_max"].item() == 0.0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"kl_coefficient": 0.1}, "ref_logprobs"),
        ({"entropy_coefficient": 0.1}, "entropy"),
        ({"importance_cap": 2.0}, "engine_logprobs"),
    ],
)
def test_a_term_without_its_input_is_an_error(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        loss_of(**{**step([1]), "config": LossConfig(**settings)})


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"advantages \(1,\)"):
        loss_of(**{**step([1, 1]), "advantages": tensor(1.0)})
    with pytest.raises(ValueError, match=r"mask \(1,\)"):
        loss_of(**{**step([1, 1]), "mask": tensor(1)})
