"""Hours of an epoch, worked out by hand (around the method)."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from mempo.command.cli import compose
from mempo.command.plan import make_plan, print_plan
from mempo.command.time_plan import Card, Work, epoch_time, read_card, scaling
from mempo.runtime.errors import ConfigError

CARD = Card(tflops=100, memory_gbs=1000, inside_gbs=100, between_gbs=10)
WORK = Work(
    parameters=10**9, trained=10**9, trajectories=160, response_tokens=1400, kv_bytes=100_000,
    at_once=10, tensor_parallel=1, sharded=False, recomputed=False, scored=True,
    micro_batch_tokens=8000, updates=1,
)  # fmt: skip


def seconds(work: Work, gpus: int, card: Card = CARD) -> dict[str, tuple[float, str]]:
    return {one.name: (one.seconds, one.bound_by) for one in epoch_time(work, card, gpus)}


def test_one_gpu() -> None:
    """160 trajectories of 600 + 1,400 tokens; 35 TFLOP/s and 600 GB/s are reached."""
    found = seconds(WORK, 1)
    # Decoding: 700 tokens × 16 turns of ten, each 2 GB of weights and 10 × 1,300 × 100 kB; reading
    # 160 × 1,300 tokens at 2 GFLOP.
    decoding = 700 * 16 * (2e9 + 1.3e9) / 6e11
    bounds = {name: bound for name, (_, bound) in found.items()}
    assert bounds == {
        "rollout": "memory", "scoring": "compute", "update": "compute", "sync": "memory",
    }  # fmt: skip
    assert found["rollout"][0] == pytest.approx(decoding + 208_000 * 2e9 / 3.5e13)
    assert found["scoring"][0] == pytest.approx(320_000 * 2e9 / 3.5e13)
    assert found["update"][0] == pytest.approx(320_000 * 6e9 / 3.5e13)
    assert found["sync"][0] == pytest.approx(2e9 / 6e11)


def test_adapters_and_recomputed_layers() -> None:
    adapters = replace(WORK, trained=10**7)
    assert seconds(adapters, 1)["update"][0] == pytest.approx(320_000 * 4e9 / 3.5e13)
    both = replace(adapters, recomputed=True)
    assert seconds(both, 1)["update"][0] == pytest.approx(320_000 * 6e9 / 3.5e13)
    assert "scoring" not in seconds(replace(WORK, scored=False), 1)


def test_sharded_over_eight() -> None:
    """Twenty trajectories each, five micro-batches; the links carry 70 GB/s."""
    sharded = replace(WORK, sharded=True, recomputed=True)
    found = {one.name: one for one in epoch_time(sharded, CARD, 8)}
    passing = 2e9 * 7 / 8 / 7e10
    assert found["scoring"].network == pytest.approx(5 * passing)
    assert found["scoring"].seconds == pytest.approx(40_000 * 2e9 / 3.5e13)
    reduced = 1e9 * 8 * 7 / 8 / 7e10
    assert found["update"].network == pytest.approx(3 * 5 * passing + reduced)
    assert found["sync"].seconds == pytest.approx(2e9 / 7e10 + 2e9 / 6e11)
    assert found["sync"].bound_by == "network"


def test_more_gpus_meet_over_slower_links() -> None:
    """Sixteen: ten trajectories each, 2.5 micro-batches; 0.7 GB/s between machines."""
    slow, sharded = replace(CARD, between_gbs=1), replace(WORK, sharded=True)
    found = {one.name: one for one in epoch_time(sharded, slow, 16)}
    network = 2 * 2.5 * 2e9 * 15 / 16 / 7e8 + 1e9 * 8 * 15 / 16 / 7e8
    assert found["update"].seconds == pytest.approx(network)
    assert found["update"].bound_by == "network"
    table = {gpus: (hours, share) for gpus, hours, share in scaling(sharded, slow)}
    assert list(table) == [8, 16, 64, 256, 1024]
    assert table[8][1] < 0.1 < 0.5 < table[16][1]
    # 160 trajectories are no more work for each of 256 GPUs than for each of 1,024.
    assert table[256][0] == pytest.approx(table[1024][0], rel=0.01)


def test_half_an_engine_each() -> None:
    """Two GPUs hold one engine: half of the weights each, all trajectories."""
    shared = replace(WORK, tensor_parallel=2)
    decoding = 700 * 16 * (2e9 + 1.3e9) / 2 / 6e11
    prefill = 208_000 * 2e9 / (3.5e13 * 2)
    assert seconds(shared, 2)["rollout"][0] == pytest.approx(decoding + prefill)


def test_a_plan_tells_hours_of_a_named_card() -> None:
    settings = ["experiment=paper_7b", "trainer.card=h100"]
    text = io.StringIO()
    print_plan(make_plan(compose("train", settings), 8), Console(file=text, width=100))
    told = text.getvalue()
    for words in ("An epoch, estimated", "rollout", "The same on", "1024 GPUs"):
        assert words in told
    without = io.StringIO()
    print_plan(make_plan(compose("train", settings[:1]), 8), Console(file=without, width=100))
    assert "estimated" not in without.getvalue()
    with pytest.raises(ConfigError, match=r"trainer\.card=h1: choose of a100_40"):
        read_card("h1")
