"""Training an agent without a memory (specification sections 4 and 9), on real parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.programs import read_lines, run_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recalled pieces in the context, a sequence for each round."""
    folder = tmp_path_factory.mktemp("baseline")
    run_program(
        "train.py", "experiment=debug", "algorithm=grpo", "rollout.context=retrieval_memory",
        "rollout.temperature=0.3", "sft.steps=90", "trainer.max_epochs=1", "evaluation.tasks=2",
        "evaluation.contexts=[retrieval_memory,react]", f"run_dir={folder}",
        f"cache_dir={folder}/cache",
    )  # fmt: skip
    return folder


def test_it_is_trained_and_no_memory_is_scored(run: Path) -> None:
    (line,) = read_lines(run / "metrics.jsonl")
    assert line["update/tokens"] > 0
    assert line["engine/mismatch_max"] < 1e-3
    assert not any(key.startswith(("memory/p_", "memory/reward")) for key in line)
    assert line.get("memory/written_share", 0.0) == 0.0
    trajectories = read_lines(run / "trajectories.jsonl")
    rounds = [one for trajectory in trajectories for one in trajectory["rounds"]]
    assert any(one["tool_failed"] or one["observation"] for one in rounds)
    assert {one["mem"] for one in rounds} == {None}
    assert {one["memory_reward"] for one in rounds} == {None}
    assert not any(8 in one["broken_rules"] for one in rounds)
    assert any("given" in one for one in rounds)


def test_its_evaluation_is_in_its_contexts(run: Path) -> None:
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert set(evaluation["after"]["contexts"]) == {"retrieval_memory", "react"}
