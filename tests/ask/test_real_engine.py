"""A run of ``train.py`` is asked on the real engine, and answers as it is evaluated (specification
section 9)."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mempo import load_agent
from mempo.agent.rollout import Rollout
from mempo.ask.__main__ import main
from mempo.command.run_settings import evaluation_settings
from mempo.evaluation.evaluate import evaluation_attempt, evaluation_sampling
from mempo.evaluation.standalone import evaluate_models
from mempo.records.trajectory_records import trajectory_record
from tests.support.docs_examples import example
from tests.support.programs import read_lines, run_program

pytestmark = pytest.mark.slow

CONTEXTS = ("memory", "full", "react", "mem1", "summary", "retrieval_memory")
BASELINES = (
    f"evaluation.contexts=[{','.join(CONTEXTS)}]",
    "evaluation.summary={every_rounds: 1, max_tokens: 24}",
)
NOT_OF_A_TASK = ("task", "source", "golds", "metadata", "metrics", "reward")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The supervised start of the two-minute experiment, long enough to learn to search."""
    folder = tmp_path_factory.mktemp("run")
    run_program(
        "train.py", "experiment=debug", "stage=sft", "sft.steps=80", "logger=none",
        "evaluation.enabled=false", f"run_dir={folder}", f"cache_dir={folder}/cache",
    )  # fmt: skip
    (trained,) = (folder / "cache").glob("sft-*")
    return Path(shutil.move(trained, folder / "model")).parent


def evaluated(run: Path, folder: Path) -> list[dict[str, Any]]:
    path = f"evaluation.model_path={run}"
    given = [path, "callbacks.progress_bars=false", *BASELINES]
    settings = evaluation_settings(given, str(folder))
    evaluate_models(settings.config, own=settings.own)
    return read_lines(folder / "trajectories.jsonl")


def told(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a question's line and a task's have in common."""
    left_out = (*NOT_OF_A_TASK, "model", "context")
    return [{key: one[key] for key in one if key not in left_out} for one in lines]


def test_asking_gives_what_evaluation_gives(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = evaluated(run, tmp_path / "evaluation")
    questions = [line["question"] for line in lines if line["context"] == "memory"]
    assert len(questions) == 4
    assert any(line["tool_calls"] for line in lines)
    for context in CONTEXTS[:2]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(questions)))
        capsys.readouterr()
        main([str(run), "-", "--json", "--context", context])
        answered = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert told(answered) == told(line for line in lines if line["context"] == context)
    with load_agent(run, overrides=BASELINES) as agent:
        for context in CONTEXTS[2:]:
            asked = [trajectory_record(one) for one in agent.ask_many(questions, context=context)]
            expected = [line for line in lines if line["context"] == context]
            assert told(asked) == told(expected)
            given = any("given" in one for line in expected for one in line["rounds"])
            assert given == (context in ("summary", "retrieval_memory"))


def test_ids_are_evaluations_and_many_at_once_are_one_by_one(run: Path) -> None:
    with load_agent(run) as agent:
        rollout = agent._rollout
        assert isinstance(rollout, Rollout)
        evaluation = agent.config.evaluation
        questions = ["What is the home of Apple Foundry?", "Who is it?", "Who is it?", "Where?"]
        many = agent.ask_many(questions)
        one_by_one = [agent.ask(question) for question in questions]
        rounds = list(agent.rounds(questions[0]))
        attempts = {
            str(place): evaluation_attempt(one.task, evaluation, "memory", seed=5)
            for place, one in enumerate(many)
        }
        straight = rollout.run(attempts, evaluation_sampling(evaluation))
    for trajectories in (one_by_one, straight):
        assert [[part.ids for part in one.sequences] for one in trajectories] == [
            [part.ids for part in one.sequences] for one in many
        ]
    assert [one.text for one in rounds] == [one.text for one in many[0].rounds]
    agent.close()


def test_the_docs_example_runs_as_it_stands(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "2026-01-01").mkdir(parents=True)
    (tmp_path / "runs" / "2026-01-01" / "12-00-00").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(example("using.md", "python", "From Python"), found)
    assert len(found["results"]) == 2
    assert len(capsys.readouterr().out.splitlines()) >= 3
