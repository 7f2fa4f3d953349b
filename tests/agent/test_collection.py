"""Attempts that come to a collection and leave it while it runs (specification section 4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import jinja2
import pytest

from mempo.agent import state_machine
from mempo.agent.collection import Attempt, Collection
from mempo.agent.error_rate import ErrorRate, ErrorRates
from mempo.agent.observations import show
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig
from mempo.engine.interface import Sampling
from mempo.trajectory import Objective, Task
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.small_tokenizers import make_conversation

SETTINGS = AgentSettings("full", 8, 2000, 300, 400)
SEARCH = "<think>so</think><search>Ann</search>"
ANSWER = "<mem>m</mem><think>done</think><answer>Ann</answer>"


class Held(Executor):
    """Runs nothing before ``release``."""

    def __init__(self) -> None:
        self._calls: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.append((future, fn, args))
        return future

    def release(self) -> None:
        for future, call, args in self._calls:
            future.set_result(call(*args))
        self._calls.clear()


def turn(collection: Collection, at_once: int = 9) -> list[tuple[str, str | None]]:
    found = collection.turn(at_once, ErrorRates(ErrorRate(0.2)), idle_s=0.0)
    return [(key, one.ending) for key, one in found]


def make_attempt(name: str) -> Attempt:
    return Attempt(Task(name, (Objective("Who?", ()),)), 0, SETTINGS)


def test_attempts_come_and_go_while_others_run() -> None:
    conversation = make_conversation("tags")
    engine = ScriptedEngine(conversation, {key: [SEARCH, ANSWER] for key in "abcd"})
    toolbox = ToolBox({"default": FakeRetriever({"Ann": "Rome."})}, RetrieverConfig())
    rollout = Rollout(engine, conversation, toolbox, jinja2.Template("{{ question }}"))
    held = Held()
    with rollout.collection({}, Sampling(), held) as collection:
        assert turn(collection) == []
        for key in "abc":
            collection.add(key, make_attempt(key))
        busy = [collection.busy]
        # a and b begin; c waits for a place.
        assert turn(collection, at_once=2) == [("a", None), ("b", None)]
        assert turn(collection, at_once=2) == [("a", None)]  # a searches, b is being generated
        for key in ("a", "b", "c", "unknown"):
            collection.give_up(key)
        collection.add("d", make_attempt("d"))
        assert turn(collection) == [("d", None)]  # b's round ends, and nobody is told
        held.release()
        assert turn(collection) == [("d", None)]  # a's search likewise
        held.release()
        assert turn(collection) == [("d", None)]
        assert turn(collection) == [("d", "answered")]
        assert [*busy, collection.busy] == [True, False]
    assert [one.key for one in engine.requests] == ["a", "b", "d", "d"]
    assert engine.aborted == 0


def test_results_are_cut_and_tokenized_on_the_tools_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's thread would stand still meanwhile: milliseconds a result."""
    conversation = make_conversation("tags")
    threads: dict[str, set[str]] = {"show": set(), "ids": set()}

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            threads[name].add(threading.current_thread().name.partition("_")[0])
            return call(*args)

        return noting

    monkeypatch.setattr(state_machine, "show", noted("show", show))
    monkeypatch.setattr(conversation, "observation_ids", noted("ids", conversation.observation_ids))
    engine = ScriptedEngine(conversation, {"0/0": [SEARCH, ANSWER]})
    toolbox = ToolBox({"default": FakeRetriever({"Ann": "Rome."})}, RetrieverConfig())
    rollout = Rollout(engine, conversation, toolbox, jinja2.Template("{{ question }}"))
    (one,) = rollout.run({"0/0": make_attempt("t")}, Sampling())
    assert one.ending == "answered"
    assert threads == {"show": {"tool"}, "ids": {"tool"}}
