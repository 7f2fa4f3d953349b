"""A trajectory in one context, driven by a script, with what the engine was shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jinja2

from mempo.agent.collection import Attempt
from mempo.agent.rollout import Rollout
from mempo.agent.settings import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig
from mempo.engine.interface import Messages, Sampling
from mempo.trajectory import Objective, Task, Trajectory
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.small_tokenizers import SYSTEM, make_conversation

PAGES = {"Ann": "Ann was born in Rome.", "Bob": "Bob is a friend.", "Rome": "Rome is a town. " * 12}
TASK = Task("t", (Objective("Who?", ("Ann",)),))
TEMPLATE = "{% if memory %}Remember.{% else %}Plain.{% endif %} {{ question }}"
SETTINGS = AgentSettings(
    context="react",
    max_rounds=8,
    max_response_tokens=4000,
    max_round_tokens=300,
    max_observation_tokens=400,
)


@dataclass(frozen=True)
class Made:
    """``prompts`` are the token ids of the engine's requests, or with ``by_chat`` the messages."""

    trajectory: Trajectory
    prompts: list[Any]
    kind: str
    template: str

    def encode(self, text: str) -> list[int]:
        return make_conversation(self.kind, self.template).encode(text)

    def ids_of(self, messages: Messages) -> list[int]:
        """The tokenizer's own template on these messages, as ids."""
        return rendered_ids(messages, self.kind, self.template)


def rendered_ids(messages: Messages, kind: str, template: str) -> list[int]:
    conversation = make_conversation(kind, template)
    text = conversation.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    return conversation.encode(text)


class ScriptedChat(ScriptedEngine):
    """A ``ScriptedEngine`` that is asked with messages."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[Messages] = []

    def submit_messages(
        self, key: str, messages: Messages, max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        self.asked.append(messages)
        self.submit(key, [0], max_tokens, seed, sampling)


def make(
    pieces: Any,
    kind: str = "tags",
    template: str = "qwen2.5",
    pages: Mapping[str, str] = PAGES,
    sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008 - frozen
    max_model_len: int = 100_000,
    by_chat: bool = False,
    **settings: Any,
) -> Made:
    """One trajectory of ``TASK``; ``settings`` change ``SETTINGS``."""
    conversation = make_conversation(kind, template)
    chosen = ScriptedChat if by_chat else ScriptedEngine
    engine = chosen(conversation, pieces, max_model_len)
    toolbox = ToolBox({"default": FakeRetriever(pages)}, RetrieverConfig())
    rollout = Rollout(engine, conversation, toolbox, jinja2.Template(TEMPLATE))
    attempt = Attempt(TASK, 0, replace(SETTINGS, **settings))
    (trajectory,) = rollout.run({"t": attempt}, sampling)
    if isinstance(engine, ScriptedChat):
        return Made(trajectory, engine.asked, kind, template)
    return Made(trajectory, [one.prompt_ids for one in engine.requests], kind, template)


def chat(*turns: str) -> Messages:
    """System message, and the turns of user and assistant in turn."""
    roles = ("user", "assistant")
    return [
        {"role": "system", "content": SYSTEM},
        *({"role": roles[i % 2], "content": text} for i, text in enumerate(turns)),
    ]


def result(text: str) -> str:
    return f"<information>{text}</information>"
