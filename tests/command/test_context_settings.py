"""Settings of the contexts (specification sections 4 and 9): which go together, and the sentences
for those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mempo.command.cli import compose, compose_tree
from mempo.command.preflight import check_evaluated_paths, check_paths
from mempo.command.run_settings import evaluation_settings
from mempo.config import CONTEXTS, RetrievalMemoryConfig, SummaryConfig, writes_memory
from mempo.evaluation.evaluate import evaluation_settings as agent_settings
from mempo.runtime.errors import ConfigError
from mempo.training.datamodule import training_settings
from tests.support.asked import make_run


def test_the_names() -> None:
    assert CONTEXTS == ("memory", "full", "retrieval_memory", "summary", "mem1", "react")
    with_memory = [name for name in CONTEXTS if writes_memory(name)]
    assert with_memory == ["memory", "full", "mem1"]


@pytest.mark.parametrize("context", ["react", "retrieval_memory"])
def test_a_context_without_memory_trains_as_grpo(context: str) -> None:
    config = compose("train", [f"rollout.context={context}", "algorithm=grpo"])
    settings = training_settings(config)
    assert settings.context == context
    assert settings.retrieval_memory == RetrievalMemoryConfig(5, 100)


def test_mem1_trains_with_the_memory_advantage() -> None:
    assert training_settings(compose("train", ["rollout.context=mem1"])).context == "mem1"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.context=react"], ["rollout.context=react", "memory.weight=0", "algorithm=grpo"]),
        (["rollout.context=retrieval_memory"], ["no memory", "memory.weight=0"]),
        (["rollout.context=summary", "algorithm=grpo"], ["evaluation.contexts=[summary]"]),
        (
            ["rollout.context=react", "algorithm=grpo", "rollout.prefill_memory=true"],
            ["rollout.prefill_memory=true", "no memory", "rollout.prefill_memory=false"],
        ),
        (
            ["rollout.context=mem1", "scoring.history=trajectory"],
            ["scoring.history=trajectory", "mem1", "scoring.history=visible"],
        ),
        (
            ["rollout.context=mem1", "sft=file", "sft.path=a"],
            ["sft.source=file", "mem1", "sft.context"],
        ),
        (["rollout.retrieval_memory.pieces=0"], ["rollout.retrieval_memory.pieces", "1"]),
        (["evaluation.summary.every_rounds=0"], ["evaluation.summary.every_rounds", "1"]),
        (["+evaluation.modes.react={keep_steps: 2}"], ["evaluation.modes.react", "there already"]),
        (["+evaluation.modes.a={context: mem1, keep_steps: 2}"], ["keep_steps", "mem1"]),
        (["+evaluation.modes.a={context: react, prefill_memory: true}"], ["no memory"]),
        (
            ["+evaluation.modes.a={context: react, summary: {every_rounds: 2}}"],
            ["summary belongs to context: summary"],
        ),
        (["evaluation.contexts=[raect]"], ["'raect'", "'react'", "evaluation.modes"]),
    ],
)
def test_what_does_not_go_together_is_told(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", overrides)
    for word in words:
        assert word in str(caught.value)


def test_settings_of_the_baselines_at_evaluation() -> None:
    config = compose(
        "evaluate",
        [
            "evaluation.summary={every_rounds: 3, max_tokens: 50}",
            "evaluation.retrieval_memory.pieces=7",
            "+evaluation.modes.often={context: summary, summary: {every_rounds: 1}}",
            "evaluation.contexts=[react,mem1,summary,retrieval_memory,often,memory]",
        ],
    ).evaluation
    found = {name: agent_settings(config, name) for name in config.contexts}
    assert [one.context for one in found.values()] == [
        *("react", "mem1", "summary", "retrieval_memory", "summary", "memory"),
    ]
    assert found["summary"].summary == SummaryConfig(3, 50)
    assert found["often"].summary == SummaryConfig(1, 256)
    assert found["retrieval_memory"].retrieval_memory == RetrievalMemoryConfig(7, 100)
    assert config.ways == ("react", "mem1", "summary", "retrieval_memory", "memory")


def test_instructions_that_ask_for_memories_are_told_before_anything_starts(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own.txt"
    own.write_text("Write <mem>. {{ question }}")
    given = [f"model.prompt_template={own}"]
    check_paths(compose("train", given))
    check_evaluated_paths(compose("evaluate", given))
    with pytest.raises(ConfigError, match=r"own.txt: .* in the context react too"):
        check_paths(compose("train", [*given, "rollout.context=react", "algorithm=grpo"]))
    with pytest.raises(ConfigError, match=r"own.txt: .* in the context summary too"):
        check_evaluated_paths(compose("evaluate", [*given, "evaluation.contexts=[full,summary]"]))
    own.write_text("{% if memory %}Write <mem>. {% endif %}{{ question }}")
    check_evaluated_paths(compose("evaluate", [*given, "evaluation.contexts=[full,summary]"]))


def test_a_run_without_memory_is_evaluated_with_its_own_settings(tmp_path: Path) -> None:
    """Which the memory advantage of the defaults would contradict."""
    trained = ["experiment=debug", "rollout.context=react", "algorithm=grpo"]
    run = make_run(tmp_path / "run", trained)
    found = evaluation_settings([f"evaluation.model_path={run}"], str(tmp_path / "out"))
    assert (found.config.rollout.context, found.config.memory.weight) == ("react", 0.0)
    tree = compose_tree("evaluate")
    assert OmegaConf.select(tree, "memory.weight") == 1.0
