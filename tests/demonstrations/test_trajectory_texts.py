"""A trajectory read from a file has the ids and the mask of the rollout that says the same
(specification sections 4 and 9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import jinja2
import pytest

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import Protocol
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox, make_tools, protocol_of
from mempo.config import SEARCH, ContextConfig, RetrieverConfig, SftConfig, ToolConfig
from mempo.demonstrations.asked_question import prompt_frame
from mempo.demonstrations.encoding import TrainingText
from mempo.demonstrations.trajectory_files import read_trajectory_files
from mempo.demonstrations.trajectory_texts import Layout, cut_at_round_end, trajectory_texts
from mempo.engine.interface import Sampling
from mempo.models.smollm2 import load_packaged_tokenizer
from mempo.records.trajectory_records import trajectory_record
from mempo.row_files.rows import DataError
from mempo.row_files.told import Told
from mempo.trajectory import Objective, Task, Trajectory
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.small_tokenizers import SYSTEM, TEMPLATES, make_conversation, make_tokenizer

PAGES = {
    "Ann": "Ann was born in Rome. " * 20,
    "Rome": "Rome <answer>is</answer> a town 🐙 of <|im_end|> many. " + "It is old. " * 30,
}
TEMPLATE = jinja2.Template("Use the tools: <search>. {{ question }}\nBegin.")
QUESTION = "Who <b>is</b> Ann?"
SCRIPT = (
    "<think>so</think><search>Ann</search>",
    "<mem>Ann: Rome</mem>\n<think>page</think><access>Rome</access>",
    "<mem>Ann: Rome, a town</mem><think>again</think>\n<access>Rome</access>",
    "<mem>Ann: Rome, old</mem><think>once more</think><search>Ann</search>",
    "<mem>Ann: Rome, a town</mem><think>done</think><answer>Ann</answer>",
)
BUDGET = 120
KINDS = [(kind, template) for kind in ("tags", "merged") for template in TEMPLATES]

Context = Literal["full", "memory"]


def roll_out(
    conversation: Conversation, context: Context, memory: ContextConfig | None = None
) -> Trajectory:
    memory = memory or ContextConfig()
    toolbox = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig(), conversation.inert)
    rollout = Rollout(ScriptedEngine(conversation, SCRIPT), conversation, toolbox, TEMPLATE)
    limits = AgentSettings(
        context, 8, 5000, 500, BUDGET, newest=memory.newest, keep_steps=memory.keep_steps
    )
    task = Task("t", (Objective(QUESTION, ("Ann",)),))
    (trajectory,) = rollout.collect([task], 1, limits, Sampling())
    assert [one.text for one in trajectory.rounds] == list(SCRIPT)
    return trajectory


def as_messages(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as chat messages, with the run's own instructions around the question."""
    asked = TEMPLATE.render(question=QUESTION)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
    for one in trajectory.rounds:
        messages.append({"role": "assistant", "content": one.text + "\n"})
        if one.observation is not None:
            messages.append({"role": "user", "content": one.observation})
    return {"messages": messages}


def texts_of(
    path: Path, conversation: Conversation, context: Any, told: Told | None = None, **options: Any
) -> list[TrainingText]:
    read = read_trajectory_files(SftConfig(source="file", path=str(path)), prompt_frame(TEMPLATE))
    layout = Layout(conversation, TEMPLATE, BUDGET, options.pop("limit", 4000), context, **options)
    return list(trajectory_texts(read.trajectories, layout, told or Told()))


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def assert_equals(texts: list[TrainingText], trajectory: Trajectory) -> None:
    assert [text.ids for text in texts] == [one.ids for one in trajectory.sequences]
    assert [text.trained for text in texts] == [
        [bool(is_policy) for is_policy in one.mask] for one in trajectory.sequences
    ]


@pytest.mark.parametrize("shape", [trajectory_record, as_messages])
@pytest.mark.parametrize(("kind", "template"), KINDS)
def test_a_read_trajectory_equals_the_rollout(
    kind: str, template: str, shape: Any, tmp_path: Path
) -> None:
    conversation = make_conversation(kind, template)
    for context in ("full", "memory"):
        trajectory = roll_out(conversation, context)
        path = write(tmp_path / f"{context}.jsonl", shape(trajectory))
        assert_equals(texts_of(path, conversation, context), trajectory)


@pytest.mark.parametrize("newest", ["full", "short"])
@pytest.mark.parametrize("keep", [1, 2, "all"])
def test_memory_contexts_of_every_kind(newest: Any, keep: Any, tmp_path: Path) -> None:
    conversation, memory = make_conversation("tags"), ContextConfig(newest, keep)
    trajectory = roll_out(conversation, "memory", memory)
    path = write(tmp_path / "run.jsonl", trajectory_record(trajectory))
    texts = texts_of(path, conversation, "memory", memory_context=memory)
    assert len(texts) == 5
    assert_equals(texts, trajectory)


@pytest.mark.slow
def test_smollm2s_own_tokenizer(tmp_path: Path) -> None:
    conversation = Conversation(load_packaged_tokenizer(), SYSTEM)
    for context in ("full", "memory"):
        trajectory = roll_out(conversation, context)
        path = write(tmp_path / f"{context}.jsonl", as_messages(trajectory))
        texts = texts_of(path, conversation, context)
        assert_equals(texts, trajectory)
        assert len(texts) == (1 if context == "full" else 5)


def test_both_contexts_show_the_first_round_once(tmp_path: Path) -> None:
    conversation = make_conversation("tags")
    path = write(tmp_path / "run.jsonl", trajectory_record(roll_out(conversation, "full")))
    full, *rounds = texts_of(path, conversation, "both")
    assert full == texts_of(path, conversation, "full")[0]
    assert rounds == texts_of(path, conversation, "memory")[1:]


def test_a_long_trajectory_ends_with_its_last_whole_round(tmp_path: Path) -> None:
    conversation, told = make_conversation("tags"), Told()
    path = write(tmp_path / "run.jsonl", trajectory_record(roll_out(conversation, "full")))
    (whole,) = texts_of(path, conversation, "full")
    following = [*whole.trained[1:], False]
    pairs = zip(whole.trained, following, strict=True)
    ends = [index + 1 for index, pair in enumerate(pairs) if pair == (True, False)]
    assert len(ends) == 5
    (cut,) = texts_of(path, conversation, "full", told, limit=ends[3] - 1)
    assert cut.ids == whole.ids[: ends[2]]
    assert sum(cut.trained) == sum(whole.trained[: ends[2]])
    (exact,) = texts_of(path, conversation, "full", limit=ends[3])
    assert exact.ids == whole.ids[: ends[3]]
    assert texts_of(path, conversation, "full", told, limit=ends[0] - 1) == []
    assert [line.split(" (the first")[0] for line in told.sentences()][:3] == [
        "1 rows are longer than the limit (sft.max_tokens) and end with an earlier round",
        "1 rows hold no round within the limit (sft.max_tokens) and were left out",
    ]


def test_the_cut_of_single_ids() -> None:
    text = TrainingText([1, 2, 3, 4, 5], [False, True, True, False, True])
    assert cut_at_round_end(text, 5) is text
    assert cut_at_round_end(text, 4) == TrainingText([1, 2, 3], [False, True, True])
    assert cut_at_round_end(text, 3) == TrainingText([1, 2, 3], [False, True, True])
    assert cut_at_round_end(text, 2) is None


def test_long_observations_are_cut_and_counted(tmp_path: Path) -> None:
    conversation, told = make_conversation("tags"), Told()
    row = {
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": SCRIPT[0]},
            {"role": "tool", "content": "Ann was born in Rome. " * 40 + "</information>"},
            {"role": "assistant", "content": SCRIPT[4]},
        ]
    }
    (text,) = texts_of(write(tmp_path / "a.jsonl", row), conversation, "full", told)
    shown = conversation.decode(text.ids)
    assert shown.count("</information>") == 1
    assert list(told.sentences()) == [
        "1 rows hold an observation longer than rollout.max_observation_tokens, which was cut (the "
        f"first: {tmp_path}/a.jsonl:1)"
    ]


def test_an_assistants_control_mark_is_refused(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "<think>a<|im_end|></think><answer>b</answer>"},
        ]
    }
    path = write(tmp_path / "a.jsonl", row)
    with pytest.raises(DataError, match=r"a\.jsonl:1: round 1 holds <\|im_end\|>, a control mark"):
        texts_of(path, make_conversation("tags"), "full")
    told = Told()
    whole = read_trajectory_files(SftConfig(source="file", path=str(path)), prompt_frame(TEMPLATE))
    layout = Layout(make_conversation("tags"), TEMPLATE, BUDGET, 4000, skip_bad_rows=True)
    assert list(trajectory_texts(whole.trajectories, layout, told)) == []
    assert told.count("could not be used and were left out (sft.skip_bad_rows)") == 1


def test_another_system_message_is_counted_and_not_used(tmp_path: Path) -> None:
    def row(system: str) -> dict[str, Any]:
        contents = (system, "Who?", "<think>a</think><answer>b</answer>")
        roles = ("system", "user", "assistant")
        pairs = zip(roles, contents, strict=True)
        return {"messages": [{"role": role, "content": content} for role, content in pairs]}

    conversation, told = make_conversation("tags"), Told()
    path = write(tmp_path / "a.jsonl", row(SYSTEM), row("Be brief."))
    first, second = texts_of(path, conversation, "full", told)
    assert first == second
    assert list(told.sentences()) == [
        "1 rows bring another system message, which is not used (model.system_prompt is) (the "
        f"first: {path}:2)"
    ]


@pytest.mark.parametrize("context", ["full", "memory"])
def test_tools_of_ones_own_are_laid_out_as_the_rollout_lays_them_out(
    context: Any, tmp_path: Path
) -> None:
    shout = ToolConfig("tests.support.own_tools.shout", "shout", None, short_chars=3)
    tools = (SEARCH, shout)
    script = [
        "<think>so</think><shout>Ann</shout>",
        "<mem>a</mem><think>so</think><search>Ann</search>",
        "<mem>b</mem><think>so</think><shout>Rome</shout>",
        "<mem>c</mem><think>done</think><answer>Ann</answer>",
    ]
    conversation = Conversation(make_tokenizer("tags"), SYSTEM, protocol_of(tools))
    box = ToolBox(
        {"default": FakeRetriever(PAGES)}, RetrieverConfig(), conversation.inert, make_tools(tools)
    )
    rollout = Rollout(ScriptedEngine(conversation, script), conversation, box, TEMPLATE)
    task = Task("t", (Objective(QUESTION, ("Ann",)),))
    limits = AgentSettings(context, 8, 5000, 500, BUDGET)
    (rolled,) = rollout.collect([task], 1, limits, Sampling())
    assert (rolled.tool_calls, rolled.format_valid) == (3, True)
    assert rolled.rounds[0].observation_short == "<information>ANN</information>"
    path = write(tmp_path / "a.jsonl", trajectory_record(rolled))
    config = SftConfig(source="file", path=str(path))
    with pytest.raises(DataError, match="exactly one <search>, <access> or <answer>"):
        read_trajectory_files(config, prompt_frame(TEMPLATE))
    with pytest.raises(DataError, match="exactly one <find> or <answer>"):
        read_trajectory_files(config, prompt_frame(TEMPLATE), Protocol(("find",)))
    read = read_trajectory_files(config, prompt_frame(TEMPLATE), conversation.protocol)
    layout = Layout(conversation, TEMPLATE, BUDGET, 4000, context, short_chars={"shout": 3})
    assert_equals(list(trajectory_texts(read.trajectories, layout, Told())), rolled)
