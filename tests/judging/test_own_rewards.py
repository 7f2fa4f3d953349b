"""Rewards of one's own, in the rollout (specification section 5): what they get and may give, their
threads and their time, weighted sums, and what is refused before anything is loaded."""

from __future__ import annotations

import threading
import time
from typing import Any

import jinja2
import pytest

from mempo.agent.collection import Watch
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.command.cli import compose
from mempo.config import RetrieverConfig, RewardConfig
from mempo.config.reward import BUILT_IN
from mempo.engine.interface import Sampling
from mempo.judging.judging import check_reward
from mempo.judging.own_functions import RewardFunctionError
from mempo.learning.rewards import METRICS
from mempo.records.epoch_metrics import collect as collect_metrics
from mempo.runtime.errors import ConfigError, MempoError
from mempo.trajectory import Objective, Task, Trajectory
from tests.support import own_rewards
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.own_rewards import HERE
from tests.support.small_tokenizers import make_conversation

SETTINGS = AgentSettings("full", 4, 1000, 200, 200)


def said(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


def roll_out(
    config: RewardConfig, scripts: dict[str, list[str]], watch: Watch | None = None
) -> list[Trajectory]:
    """A task for each script, whose gold answer is ``Ann``."""
    conversation = make_conversation("tags")
    engine = ScriptedEngine(conversation, scripts)
    toolbox = ToolBox({"default": FakeRetriever({})}, RetrieverConfig())
    rollout = Rollout(
        engine, conversation, toolbox, jinja2.Template("{{ question }}"), reward=config
    )
    tasks = [Task(f"t{i}", (Objective("Who?", ("Ann",)),)) for i in range(len(scripts))]
    return rollout.collect(tasks, 1, SETTINGS, Sampling(), watch=watch or Watch())


def test_a_function_is_the_reward_off_the_engines_thread() -> None:
    own_rewards.THREADS.clear()
    own_rewards.SEEN.clear()
    found = roll_out(
        RewardConfig(f"{HERE}.length"),
        {"0/0": [said("  Ann Lee ")], "1/0": ["nothing"], "2/0": [said("no") + "x"]},
    )
    assert sorted(own_rewards.SEEN, key=str) == [("Ann Lee", "t0"), ("no", "t2"), (None, "t1")]
    assert [one.metrics[f"{HERE}.length"] for one in found] == [0.07, 0.0, 0.02]
    # The second one has no action: a broken format.
    assert [one.reward for one in found] == [0.07, 0.0, 0.02]
    assert [one.metrics["exact_match"] for one in found] == [0.0, 0.0, 0.0]
    assert own_rewards.THREADS
    assert all(name.startswith("reward_") for name in own_rewards.THREADS)
    assert not [one for one in threading.enumerate() if one.name.startswith("reward_")]


def test_the_numbers_of_a_dict_are_logged_by_name() -> None:
    found = roll_out(RewardConfig(f"{HERE}.parts"), {"0/0": [said("Ann")], "1/0": [said("Bob")]})
    assert [one.reward for one in found] == [0.25, 0.25]
    logged = collect_metrics(found).result()
    assert logged[f"reward/{HERE}.parts"] == 0.25
    assert logged[f"reward/{HERE}.parts.golds"] == 1.0
    assert logged[f"reward/{HERE}.parts.is_right"] == 0.5
    assert logged["reward/mean"] == 0.25


def test_a_weighted_sum_is_times_the_format() -> None:
    terms = {"exact_match": 1.0, "f1": 0.5, f"{HERE}.length": 10.0, f"{HERE}.parts": 0.0}
    broken = "<answer>Ann</answer>"  # no thought
    found = roll_out(
        RewardConfig(terms=terms),
        {"0/0": [said("Ann")], "1/0": [said("Ann Lee")], "2/0": [broken]},
    )
    # By hand: F1 of "Ann Lee" against "Ann" is 2/3; lengths 3, 7 and 3.
    assert found[0].reward == pytest.approx(1.0 + 0.5 + 0.3)
    assert found[1].reward == pytest.approx(0.5 * 2 / 3 + 0.7)
    assert found[2].reward == 0.0
    assert found[2].metrics[f"{HERE}.length"] == 0.03
    assert all(one.metrics[f"{HERE}.parts"] == 0.25 for one in found)


def test_a_slow_reward_holds_up_nobody() -> None:
    own_rewards.GATE.clear()
    order = []

    def finished(key: str, trajectory: Trajectory) -> None:
        order.append(key)
        own_rewards.GATE.set()

    found = roll_out(
        RewardConfig(f"{HERE}.gated"),
        {"0/0": [said("slow")], "1/0": [said("fast")]},
        Watch(finished=finished),
    )
    assert order == ["1/0", "0/0"]
    assert [one.answer for one in found] == ["slow", "fast"]


def test_one_that_hangs_is_named_and_left_behind() -> None:
    start = time.monotonic()
    said_so = rf"{HERE}\.hangs took longer than reward\.timeout_s=0\.2 seconds for task t0, epoch 0"
    with pytest.raises(MempoError, match=said_so):
        roll_out(RewardConfig(f"{HERE}.hangs", timeout_s=0.2), {"0/0": [said("Ann")]})
    assert time.monotonic() - start < 4
    (left,) = [one for one in threading.enumerate() if one.name.startswith("reward_")]
    assert left.daemon
    left.join(10)


def test_an_exception_stops_the_run_with_its_traceback() -> None:
    with pytest.raises(RewardFunctionError) as caught:
        roll_out(RewardConfig(f"{HERE}.raises"), {"0/0": [said("Ann")]})
    named = f"the reward {HERE}.raises raised KeyError for task t0, epoch 0, sample 0: "
    assert str(caught.value).startswith(named)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gives_nan", "gives_nan gave nan for task t0, epoch 0, sample 0: a finite number"),
        ("gives_text", "gave '1.0', of type str, for task t0, epoch 0, sample 0: a number is"),
        ("gives_nothing", "gave None, of type NoneType, for task t0"),
        ("gives_no_reward", r"without the key 'reward' for task t0, .*: {'score': 1\.0}"),
        ("gives_infinite_part", r"gives_infinite_part\.odds gave inf for task t0"),
    ],
)
def test_what_is_no_reward_stops_the_run(name: str, words: str) -> None:
    with pytest.raises(MempoError, match=words):
        roll_out(RewardConfig(f"{HERE}.{name}"), {"0/0": [said("Ann")]})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module.fuzzy", r"reward\.metric=no_such_module\.fuzzy: there is no module"),
        (f"{HERE}.lenght", r"has no lenght; did you mean tests\.support\.own_rewards\.length\?"),
        (f"{HERE}.takes_one", r"cannot be called as takes_one\(answer, task\): too many pos"),
        (f"{HERE}.later", "is asynchronous"),
        (f"{HERE}.Thing", "is a class, and a function"),
        (f"{HERE}.number", "is a int, and a function"),
    ],
)
def test_what_is_no_function_is_told_first(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_reward(RewardConfig(name), "unused")
    with pytest.raises(ConfigError, match=words.replace("metric", "terms")):
        check_reward(RewardConfig(terms={"exact_match": 1.0, name: 1.0}), "unused")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["reward.metric=exact"], "'exact' is none of .*; did you mean exact_match?"),
        (["reward.metric=a..b"], "'a..b' is none of exact_match, f1, f1_set, judge, nor"),
        (["reward.terms={exact_match: 1.0, bleu: 0.5}"], r"reward\.terms: 'bleu' is none of"),
        (["reward.terms={}"], r"reward\.terms is empty"),
        (["reward.metric=f1", "reward.terms={exact_match: 1.0}"], "metric=f1 is not among reward"),
        (["reward=judge"], r"reward\.judge\.url is empty: the judge needs reward\.judge\.url="),
        (["reward.terms={judge: 0.0}", "reward.judge.url=http://h/v1"], r"judge\.model is empty"),
        (["+reward.judge.api_key=sk-1"], r"reward\.judge\.api_key: there is no such setting"),
        (["reward.judge.api_key_env=sk-123"], "name of an environment variable"),
        (["reward.judge.url=http://me:secret@host/v1"], "holds a password"),
        (["reward.judge.url=http://h/v1/chat/completions"], "leave out what follows /v1"),
    ],
)
def test_settings_that_cannot_be_meant(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose("train", settings)


def test_the_configuration_knows_the_metrics() -> None:
    assert tuple(METRICS) == BUILT_IN
    assert compose("train").reward == RewardConfig()
    for variant in ("mempo", "grpo", "mempo_reference", "mempo_paper", "mempo_plus"):
        chosen = compose("train", [f"algorithm={variant}", "reward.metric=f1"]).reward
        assert chosen.weights == {"f1": 1.0}


def test_terms_can_be_given_on_the_command_line() -> None:
    terms: dict[str, Any] = {"exact_match": 1.0, "my_rewards.fuzzy": 0.5}
    given = "reward.terms={exact_match: 1.0, my_rewards.fuzzy: 0.5}"
    found = compose("train", [given]).reward
    assert (found.terms, found.functions, found.judged) == (terms, ("my_rewards.fuzzy",), False)
