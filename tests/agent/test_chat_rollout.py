"""Trajectories of a model that is asked with chats (specification sections 4 and 9)."""

from __future__ import annotations

from typing import Any, Literal

import jinja2
import pytest

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import STOP_STRINGS, unclosed_action
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import EngineConfig, RetrieverConfig
from mempo.engine.interface import Sampling
from mempo.engine.openai_engine import ChatEngine, TextCodec
from mempo.engine.server_start import start_server_engine
from mempo.models.stand_in_tokenizer import StandInTokenizer
from mempo.trajectory import Ending, Objective, Task, Trajectory
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.openai_servers import chat_answer, openai_server
from tests.support.servers import Reply
from tests.support.small_tokenizers import make_conversation

ROUNDS = [
    "<think>a</think><search>Amber Works</search>",
    "<mem>Anna Bel founded it.</mem><think>b</think><search>Anna Bel</search>",
    "<mem>Born in Arnden.</mem><think>c</think><answer>Arnden</answer>",
]
PAGES = {"Amber Works": "founder Anna Bel.", "Anna Bel": "birthplace <answer>Arnden."}
FIRST = "<information>1. Amber Works: founder Anna Bel.</information>"
SECOND = "<information>1. Anna Bel: birthplace (answer)Arnden.</information>"
TASK = Task("t", (Objective("Where <mem>?", ("Arnden",)),))
TEMPLATE = jinja2.Template("Answer: {{ question }}")
OPENING = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Answer: Where (mem)?"},
]


def rolled_out(engine: Any, conversation: Conversation, settings: AgentSettings) -> Trajectory:
    toolbox = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig(), conversation.inert)
    rollout = Rollout(engine, conversation, toolbox, TEMPLATE)
    (trajectory,) = rollout.collect([TASK], 1, settings, Sampling())
    return trajectory


def settings(context: Literal["full", "memory"], prefill: bool = False) -> AgentSettings:
    return AgentSettings(context, 8, 2000, 500, 300, prefill_memory=prefill)


def by_chat(
    conversation: Conversation, how: AgentSettings, exact: bool
) -> tuple[Trajectory, list[Any]]:
    """A server that leaves the stop text out, as hosted models do."""

    def reply(path: str, body: Any, number: int) -> Reply:
        text = ROUNDS[number]
        return 200, chat_answer(text[: text.rindex("</")])

    codec = TextCodec(
        conversation.encode,
        sorted(conversation.end_ids),
        conversation.end_of_turn_id,
        STOP_STRINGS,
        unclosed_action,
        exact,
    )
    with openai_server(reply) as (url, requests):
        config = EngineConfig(kind="openai", url=url, protocol="chat")
        engine = start_server_engine(config, "served", codec, lambda line: None)
        try:
            assert isinstance(engine, ChatEngine)
            return rolled_out(engine, conversation, how), requests.bodies
        finally:
            engine.close()


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("kind", ["merged", "stand-in"])
def test_it_is_the_trajectory_of_an_engine_that_says_the_same(
    context: Literal["full", "memory"], kind: str
) -> None:
    conversation = make_conversation("merged")
    if kind == "stand-in":
        conversation = Conversation(StandInTokenizer(), conversation.system_prompt)
    how = settings(context)
    found, bodies = by_chat(conversation, how, kind == "merged")
    expected = rolled_out(ScriptedEngine(conversation, ROUNDS), conversation, how)
    assert [one.text for one in found.rounds] == ROUNDS
    assert [part.ids for part in found.sequences] == [part.ids for part in expected.sequences]
    assert [part.mask for part in found.sequences] == [part.mask for part in expected.sequences]
    assert (found.ending, found.answer, found.reward) == (Ending.ANSWERED, "Arnden", 1.0)
    said = [{"role": "assistant", "content": text} for text in ROUNDS]
    told = [{"role": "user", "content": text} for text in (FIRST, SECOND)]
    assert bodies[0]["messages"] == OPENING
    assert bodies[1]["messages"] == [*OPENING, said[0], told[0]]
    last = [said[1], told[1]] if context == "memory" else [said[0], told[0], said[1], told[1]]
    assert bodies[2]["messages"] == [*OPENING, *last]


def test_no_memory_is_begun_for_a_chat() -> None:
    found, _ = by_chat(make_conversation("merged"), settings("memory", prefill=True), True)
    assert [one.text for one in found.rounds] == ROUNDS
    assert found.format_valid


@pytest.mark.parametrize(
    ("text", "closing"),
    [
        ("<think>a</think><search>b", "</search>"),
        ("<answer>", "</answer>"),
        ("<think>a<search>b", ""),
        ("<think>a</think><search>b</search>", ""),
        ("<think>a</think></search>", ""),
        ("<think>a</think><search>b</search>, more", ""),
        ("", ""),
    ],
)
def test_which_action_a_text_ends_in(text: str, closing: str) -> None:
    assert unclosed_action(text) == closing
