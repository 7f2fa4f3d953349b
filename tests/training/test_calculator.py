"""The calculator of docs/extending.md: the page's command trains with it, the page shows its files,
and an agent computes with it (specification sections 2 to 4)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from examples.calculator.tool import calculate
from mempo.agent.conversation import Conversation
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import BadArgument, protocol_of
from mempo.command.run_settings import evaluation_settings
from mempo.engine.interface import Sampling
from mempo.trajectory import Ending, Objective, Task
from tests.support.docs_examples import commands, example
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.programs import ROOT, read_lines, run_program

FOLDER = ROOT / "examples" / "calculator"
TASK = Task("t", (Objective("What is 2 to the 10?", ("1024",)),))


def test_the_page_shows_the_examples_files() -> None:
    assert example("extending.md", "python") == (FOLDER / "tool.py").read_text("utf-8")
    shown = example("extending.md", "yaml")
    assert shown == (FOLDER / "conf" / "tools" / "calculator.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("(3 + 4) * 2", "14"), ("2**10", "1024"), ("0.1 + 0.2", "0.3"), ("-(7 % 4)", "-3"),
        ("1 / 3", "0.333333333333333"), ("999999999999999", "999999999999999"), ("4**0.5", "2"),
    ],
)  # fmt: skip
def test_what_it_computes(argument: str, value: str) -> None:
    assert calculate(argument, TASK) == value


@pytest.mark.parametrize(
    "argument",
    [
        "9**9**9", "10**15 * 2", "1e999", "(-8)**0.5", "1 / 0", "2**-1e9", "'a' * 9**9", "[1] * 3",
        "__import__('os')", "x", "1 +", "((((", "a\0b", "1" * 5000, "1" + " + 1" * 100, "(" * 190,
    ],
)  # fmt: skip
def test_what_it_does_not(argument: str) -> None:
    with pytest.raises(BadArgument, match="Write numbers up to"):
        calculate(argument, TASK)


def test_the_pages_command_trains_with_it(tmp_path: Path) -> None:
    command = commands("extending.md")[0]
    folder = tmp_path / "run"
    printed = run_program("train.py", *command, f"run_dir={folder}", f"cache_dir={tmp_path}/cache")
    assert printed.rstrip().endswith(f"written to {folder}")
    (line,) = read_lines(folder / "metrics.jsonl")
    assert line["rollout/trajectories"] == 8
    kept = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text("utf-8"))["tools"]
    assert kept[:2] == ["search", "access"]
    assert kept[2]["_target_"] == "examples.calculator.tool.calculate"

    # The run's own settings, model and tools, with a script in the model's place.
    config = evaluation_settings([f"evaluation.model_path={folder}"], "runs/evaluated").config
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer.tokenize("<calculate>")[0] == "<calculate>"
    conversation = Conversation(tokenizer, config.model.system_prompt, protocol_of(config.tools))
    script = [
        "<think>so</think><calculate>2 ** 10</calculate> more",
        "<mem>m</mem><think>so</think><calculate>1 / 0</calculate>",
        "<mem>m</mem><think>so</think><answer>1024</answer>",
    ]
    rollout = Rollout.from_config(
        config, ScriptedEngine(conversation, script), conversation, {"default": FakeRetriever({})}
    )
    limits = AgentSettings("full", 4, 2000, 200, 200)
    (one,) = rollout.collect([TASK], 1, limits, Sampling())
    assert (one.ending, one.reward, one.format_valid) == (Ending.ANSWERED, 1.0, True)
    assert [part.observation for part in one.rounds] == [
        "<information>1024</information>",
        "<information>Write numbers up to 10**15, + - * / % **, and brackets.</information>",
        None,
    ]
    assert (one.tool_calls, one.tool_failures, one.tool_errors) == (2, 1, 0)
    prompt = conversation.decode(one.sequences[0].ids[: one.prompt_length])
    assert "<mem><think><search><access><calculate><answer>" in prompt
