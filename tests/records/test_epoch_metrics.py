"""Epoch metrics against values worked out by hand, on one process and merged over two (around the
method)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from callbacks.memory_distributions import histograms
from mempo.data.sources import named_sources, source_name
from mempo.records.epoch_metrics import MetricSums, collect
from mempo.records.epoch_record import gather_epoch_record
from mempo.records.trajectory_records import trajectory_record
from mempo.runtime.phases import Phases
from mempo.trajectory import Ending, Trajectory
from tests.support.handmade import make_round, make_trajectory


def four_trajectories() -> list[Trajectory]:
    """Two tasks of two samples: t1's rewards are 1 and 0, t2's are both 0."""
    trajectories = _four_trajectories()
    scored = [one for trajectory in trajectories for one in trajectory.scored_rounds()]
    for one, kept_mem, kept_full in zip(scored, (0.5, 1.0, 0.0), (1.0, 0.0, None), strict=True):
        one.kept_mem, one.kept_full = kept_mem, kept_full
    return trajectories


def _four_trajectories() -> list[Trajectory]:
    return [
        make_trajectory(
            "t1",
            0,
            rounds=(
                make_round(1, 4),
                make_round(2, 6, p_mem=0.5, p_full=0.25, advantage=1.0),
                make_round(3, 2, p_mem=0.75, p_full=0.5, advantage=-1.0),
            ),
            tokens=100,
            tool_calls=2,
        ),
        make_trajectory(
            "t1",
            1,
            reward=0.0,
            exact_match=0.5,
            rounds=(make_round(1), make_round(2)),
            ending=Ending.MAX_ROUNDS,
            tokens=300,
        ),
        make_trajectory("t2", 0, reward=0.0, exact_match=0.0, rounds=(make_round(1),), tokens=40),
        make_trajectory(
            "t2",
            1,
            reward=0.0,
            exact_match=0.0,
            rounds=(make_round(1), make_round(2, 4, p_mem=0.25, p_full=0.5, advantage=0.5)),
            ending=Ending.NO_ACTION,
            tokens=60,
        ),
    ]


EXPECTED = {
    "reward/mean": 0.25,
    "reward/exact_match": 0.375,
    "reward/f1": 0.375,
    "reward/format_valid": 0.25,
    "rollout/trajectories": 4.0,
    "rollout/rounds_mean": 2.0,
    "rollout/questions_mean": 2.0,
    "ending/answered": 0.5,
    "ending/max_rounds": 0.25,
    "ending/no_action": 0.25,
    "ending/response_budget": 0.0,
    "ending/context_budget": 0.0,
    "tokens/total_mean": 125.0,
    "tokens/peak_mean": 62.5,
    "tokens/policy_mean": 2.0,
    "tools/calls": 5.0,
    "tools/failures": 4.0,
    "tools/errors": 0.0,
    "groups/count": 2.0,
    "groups/constant_share": 0.5,
    "memory/written_share": 0.75,  # of four rounds after the first three hold a memory
    "memory/tokens_mean": 4.0,  # 4, 6, 2, 4
    "memory_tokens_by_round/round_1": 4.0,
    "memory_tokens_by_round/round_2": 5.0,
    "memory_tokens_by_round/round_3": 2.0,
    "memory/p_mem_mean": 0.5,
    "memory/p_full_mean": 1.25 / 3,
    "memory/reward_mean": 0.25 / 3,
    # 0.25, 0.25 and -0.25 lie 1/6, 1/6 and 1/3 from their mean.
    "memory/reward_std": math.sqrt((1 / 36 + 1 / 36 + 1 / 9) / 3),
    "memory_reward_by_round/round_2": 0.0,
    "memory_reward_by_round/round_3": 0.25,
    "memory_advantage_by_round/round_2": 0.75,
    "memory_advantage_by_round/round_3": -1.0,
    # Two values in round 2: a tenth of the way from the lower to the upper, half, nine tenths.
    "memory_reward_quantiles/round_2_p10": -0.2,
    "memory_reward_quantiles/round_2_p50": 0.0,
    "memory_reward_quantiles/round_2_p90": 0.2,
    "p_mem_quantiles/round_2_p10": 0.275,
    "p_mem_quantiles/round_2_p50": 0.375,
    "p_mem_quantiles/round_2_p90": 0.475,
    "p_full_quantiles/round_2_p10": 0.275,
    "p_full_quantiles/round_2_p50": 0.375,
    "p_full_quantiles/round_2_p90": 0.475,
    **{f"memory_reward_quantiles/round_3_p{percent}": 0.25 for percent in (10, 50, 90)},
    **{f"p_mem_quantiles/round_3_p{percent}": 0.75 for percent in (10, 50, 90)},
    **{f"p_full_quantiles/round_3_p{percent}": 0.5 for percent in (10, 50, 90)},
    # The three scored rounds keep 1/2, all and none of the answer after the memory, all and none
    # after the history; the third was scored without a filter's count.
    "filter/kept_mem": 0.5,
    "filter/none_kept_mem": 1 / 3,
    "filter/kept_full": 0.5,
    "filter/none_kept_full": 0.5,
}


def test_values_by_hand() -> None:
    assert collect(four_trajectories()).result() == pytest.approx(EXPECTED)


def test_metrics_by_source() -> None:
    trajectories = four_trajectories()
    for one in trajectories:
        source = "nq" if one.task.id == "t2" else "hotpotqa"
        one.task = replace(one.task, source=source)
        one.metrics |= {"f1": one.metrics["exact_match"] / 2}
    named = ("hotpotqa", "nq", "triviaqa")
    halves = (collect(trajectories[:1], named), collect(trajectories[1:], named))
    halves[0].merge(halves[1])
    found = halves[0].result()
    assert {key: value for key, value in found.items() if "_by_source" in key} == {
        "share_by_source/hotpotqa": 0.5,
        "share_by_source/nq": 0.5,
        "share_by_source/triviaqa": 0.0,  # no task of it in this epoch: the rest is absent
        "reward_by_source/hotpotqa": 0.5,
        "reward_by_source/nq": 0.0,
        "exact_match_by_source/hotpotqa": 0.75,
        "exact_match_by_source/nq": 0.0,
        "f1_by_source/hotpotqa": 0.375,
        "f1_by_source/nq": 0.0,
        "memory_reward_by_source/hotpotqa": 0.25,
        "memory_reward_by_source/nq": -0.25,
    }
    rest = collect(trajectories, ("nq", "other")).result()
    assert rest["exact_match_by_source/other"] == 0.75
    assert rest["share_by_source/other"] == 0.5


def test_sources_that_figures_name_are_bounded() -> None:
    assert named_sources(["nq"] * 3) == named_sources([]) == ()
    assert named_sources(["nq", "hotpotqa", "nq"]) == ("hotpotqa", "nq")
    many = [f"s{number:02}" for number in range(20) for _ in range(1 + (number > 3))]
    assert named_sources(many) == (*(f"s{number:02}" for number in range(4, 20)), "other")
    assert source_name("s00", named_sources(many)) == "other"


def test_a_key_without_a_sample_is_absent() -> None:
    metrics = collect([make_trajectory(rounds=(make_round(1),))]).result()
    assert not [key for key in metrics if key.startswith("memory/")]
    assert collect([]).result() == {}


def test_without_histories_the_metrics_of_p_full_are_absent() -> None:
    """``scoring.baseline=previous``, with rewards in nats."""
    rounds = tuple(make_round(number, 4, p_mem=0.5) for number in (2, 3))
    for one, before, reward in zip(rounds, (0.25, 0.5), (math.log(2.0), 0.0), strict=True):
        one.p_previous, one.memory_reward, one.kept_mem = before, reward, 1.0
    found = collect([make_trajectory(rounds=(make_round(1), *rounds))]).result()
    assert found["memory/p_previous_mean"] == pytest.approx(0.375)
    assert found["memory/p_mem_mean"] == pytest.approx(0.5)
    assert found["memory/reward_mean"] == pytest.approx(math.log(2.0) / 2)
    assert [key for key in found if "full" in key] == []
    line = trajectory_record(make_trajectory(rounds=rounds))
    assert [one["p_previous"] for one in line["rounds"]] == [0.25, 0.5]
    assert [one["p_full"] for one in line["rounds"]] == [None, None]


def test_rewards_in_nats_have_bins_of_their_own() -> None:
    """40 bins from -10 to 10, half a nat each; what lies beyond is in the outermost."""
    values = {("memory_reward", 2): [-35.0, -9.9, 0.1, 0.4, 12.0], ("p_mem", 2): [0.5]}
    found: Any = histograms([values], in_nats=True)
    rewards = found["memory_reward_histograms/round_2"].histogram
    assert (rewards[0], rewards[20], rewards[-1], sum(rewards)) == (2, 2, 1, 5)
    assert sum(found["p_mem_histograms/round_2"].histogram) == 1
    plain: Any = histograms([{("memory_reward", 2): [-1.0, 0.02, 1.0]}])
    rewards = plain["memory_reward_histograms/round_2"].histogram
    assert (rewards[0], rewards[20], rewards[-1], sum(rewards)) == (1, 1, 1, 3)


@pytest.mark.parametrize("cut", range(5))
def test_merging_does_not_depend_on_the_split(cut: int) -> None:
    trajectories = four_trajectories()
    sums = MetricSums()
    sums.merge(collect(trajectories[:cut]))
    sums.merge(collect(trajectories[cut:]))
    assert sums.result() == pytest.approx(EXPECTED)


def test_group_spread_over_processes_is_not_constant() -> None:
    sums = collect([make_trajectory("t", 0, reward=1.0)])
    assert sums.result()["groups/constant_share"] == 1.0
    sums.merge(collect([make_trajectory("t", 1, reward=0.0)]))
    assert sums.result()["groups/constant_share"] == 0.0


@pytest.mark.parametrize(
    ("trajectory", "words"),
    [
        (make_trajectory("t9", 3, reward=None), "task t9, epoch 0, sample 3 has no reward"),
        (make_trajectory("t9", 3, ending=None), "task t9, epoch 0, sample 3 has no ending"),
    ],
)
def test_an_unfinished_trajectory_is_an_error(trajectory: Trajectory, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        collect([make_trajectory(), trajectory])


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    trajectories = four_trajectories()
    own = trajectories[:1] if rank == 0 else trajectories[1:]
    phases = Phases()
    phases.seconds["rollout"] = 2.0 - rank
    phases.peak_gib["update"] = 1.0 + rank
    record = gather_epoch_record(4, 20, own, {"update/loss": 0.5}, 1, [phases])
    (Path(folder) / f"{rank}.json").write_text(json.dumps(record))
    dist.destroy_process_group()


def test_two_processes_with_different_keys(tmp_path: Path) -> None:
    spawn(_rank, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        # Of two processes the slower one's seconds and the fuller one's memory.
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(
            EXPECTED
            | {
                "epoch": 4,
                "trainer/global_step": 20,
                "update/loss": 0.5,
                "engine/staleness": 1.0,
                "seconds/rollout": 2.0,
                "peak_gib/update": 2.0,
            }
        )
