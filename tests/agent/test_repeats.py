"""Circles (specification sections 4 and 9): what a greedy agent does again is not sampled again,
and everything stays as it was.

Each test makes a trajectory twice, the long way and with ``reuse_repeats``, and compares all of it:
ids, log-probabilities, texts, counts, ending.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo.agent.collection import Attempt
from mempo.agent.repeats import GenerationRequest, Sampled, SeenContexts
from mempo.agent.rollout import Rollout
from mempo.agent.state_machine import AgentSettings
from mempo.agent.tools import PAGE_END, ToolBox
from mempo.config import RetrieverConfig
from mempo.engine.interface import Generation, Sampling
from mempo.retrieval.base import Passage
from mempo.trajectory import Ending, Objective, Task, Trajectory
from tests.support.fakes import AnsweringEngine, FakeRetriever
from tests.support.small_tokenizers import make_conversation

GREEDY = Sampling(temperature=0.0)
QUESTION = "Who is Ann?"
TASK = Task("t", (Objective(QUESTION, ("Ann",)),))
SONG = "Song " * 30  # a title too long for the observation: parts of the page look alike
PAGES = {
    "Ann": "Ann was born in Rome.",
    "Rome": "Rome is a town by the sea, or not far from it. " * 6,
    SONG.strip(): "la " * 300,
}
SETTINGS = AgentSettings(
    context="memory",
    max_rounds=20,
    max_response_tokens=20_000,
    max_round_tokens=300,
    max_observation_tokens=100,
)

SEARCH = "<think>t</think><search>Ann</search>"
NOTHING = "<think>t</think><search>nobody</search>"
READ = "<think>t</think><access>Rome</access>"
SING = f"<think>t</think><access>{SONG}</access>"
ANSWER = "<think>t</think><answer>Ann</answer>"
IDLE = "and so on"
INNER_STOP = "<think>not a </search>"  # the engine stops; the round goes on
GOES_ON = " yet</think><search>Ann</search>"
RAMBLE = f"<think>{'so ' * 40}</think><search>Ann</search>"


@dataclass(frozen=True)
class Walker:
    """A deterministic policy: its memory says where it stands, ``m0`` at first, and from there it
    goes to the first or, where ``turns`` says so of what it last observed, to the second of two
    places. ``acts`` says what it does at each place. ``doubles``: it writes a prefilled ``<mem>``
    itself.
    """

    ways: Sequence[tuple[int, int]]
    acts: Sequence[str]
    doubles: bool = False
    turns: Callable[[str], bool] = lambda observed: len(observed) % 2 == 1

    def __call__(self, prompt: str) -> str:
        if prompt.endswith("</search>"):
            return GOES_ON
        past = prompt.split(QUESTION, 1)[1]
        memories = re.findall(r"<mem>m(\d)", past)
        observed = re.findall(r"<information>(.*?)</information>", past, re.DOTALL)
        here = int(memories[-1]) if memories else 0
        place = self.ways[here][int(bool(observed) and self.turns(observed[-1]))]
        opening = "" if prompt.endswith("<mem>") and not self.doubles else "<mem>"
        return f"{opening}m{place}</mem>{self.acts[place]}"


class GreedyEngine(AnsweringEngine):
    """``AnsweringEngine`` with log-probabilities that depend on the prompt and the place in it."""

    def step(self) -> list[Generation]:
        (made,) = super().step()
        prompt = self.requests[-1].prompt_ids
        first = len(prompt) + sum(prompt) % 97
        return [replace(made, logprobs=[-(first + i) / 1024 for i in range(len(made.ids))])]


@dataclass(frozen=True)
class Made:
    trajectory: Trajectory
    prompts: list[tuple[int, ...]]
    queries: list[str]


def make(
    walker: Walker,
    agent_settings: AgentSettings,
    reuse: bool,
    retriever: FakeRetriever | None = None,
    sampling: Sampling = GREEDY,
    max_model_len: int = 100_000,
) -> Made:
    conversation = make_conversation("merged")
    engine = GreedyEngine(conversation, walker)
    engine.max_model_len = max_model_len
    retriever = retriever or FakeRetriever(PAGES)
    toolbox = ToolBox({"default": retriever}, RetrieverConfig())
    rollout = Rollout(engine, conversation, toolbox, jinja2.Template("{{ question }}"))
    chosen = replace(agent_settings, reuse_repeats=reuse)
    (trajectory,) = rollout.run({"t": Attempt(TASK, 0, chosen)}, sampling)
    prompts = [tuple(request.prompt_ids) for request in engine.requests]
    return Made(trajectory, prompts, retriever.queries)


def compare(walker: Walker, agent_settings: AgentSettings, **options: Any) -> Made:
    """Makes the trajectory both ways, compares, and returns it as made with ``reuse_repeats``."""
    long = make(walker, agent_settings, False, **options)
    short = make(walker, agent_settings, True, **options)
    assert long.trajectory.repeated_rounds == 0
    assert replace(short.trajectory, repeated_rounds=0) == long.trajectory
    assert short.queries == long.queries
    assert set(short.prompts) == set(long.prompts)
    return short


def circle(before: int, period: int) -> Walker:
    """``before`` places once, then ``period`` places for ever; every act is the same search."""
    last = before + period
    follows = [*range(1, last + 1), before + 1]
    return Walker([(place, place) for place in follows], [SEARCH] * (last + 1))


# Shapes of circles


@pytest.mark.parametrize("keep_steps", [1, 2, 3])
@pytest.mark.parametrize(("before", "period"), [(0, 1), (3, 1), (0, 2), (2, 2), (0, 3), (4, 3)])
def test_a_circle_is_sampled_once(before: int, period: int, keep_steps: int) -> None:
    """A context is the last ``keep_steps`` rounds. The first rounds have fewer before them; then
    each of ``before + period`` windows comes for the first time."""
    made = compare(circle(before, period), replace(SETTINGS, keep_steps=keep_steps))
    assert made.trajectory.ending is Ending.MAX_ROUNDS
    assert len(made.trajectory.rounds) == 20
    assert len(made.prompts) == keep_steps + before + period
    assert made.trajectory.repeated_rounds == 20 - keep_steps - before - period
    assert len(made.queries) == 19, "tools are called as ever; the last round's action is not"


def test_a_round_of_several_requests_is_sampled_once() -> None:
    made = compare(replace(circle(0, 1), acts=[INNER_STOP] * 2), SETTINGS)
    assert len(made.prompts) == 2 * 2
    assert made.trajectory.repeated_rounds == 18
    assert made.trajectory.rounds[7].text == f"<mem>m1</mem>{INNER_STOP}{GOES_ON}"


def test_rounds_that_are_cut_and_go_on_are_sampled_once() -> None:
    cut = replace(SETTINGS, max_round_tokens=30, on_no_action="feedback")
    made = compare(replace(circle(0, 2), acts=[RAMBLE] * 3), cut)
    assert made.trajectory.ending is Ending.MAX_ROUNDS
    assert made.trajectory.repeated_rounds == 17


def test_with_a_prefilled_memory() -> None:
    for doubles in (False, True):
        walker = replace(circle(1, 2), doubles=doubles)
        made = compare(walker, replace(SETTINGS, prefill_memory=True))
        assert made.trajectory.repeated_rounds == 16


# Where a circle ends


def test_the_budget_runs_out_where_it_would_have() -> None:
    """Every budget over the tokens of one whole circle, from one that three rounds fit into."""
    whole = compare(circle(0, 2), SETTINGS).trajectory
    tokens = [
        sequence.policy_tokens + one.result_tokens
        for sequence, one in zip(whole.sequences, whole.rounds, strict=True)
    ]
    ends = set()
    for budget in range(sum(tokens[:4]), sum(tokens[:6]) + 1):
        made = compare(circle(0, 2), replace(SETTINGS, max_response_tokens=budget))
        assert made.trajectory.ending is Ending.RESPONSE_BUDGET
        assert len(made.prompts) == 3
        ends.add((len(made.trajectory.rounds), made.trajectory.rounds[-1].action))
    # Cut within the round, or after it where the observation does not fit.
    assert ends >= {(5, None), (5, "search"), (6, None), (6, "search")}


def test_a_page_that_is_read_on_ends_the_circle() -> None:
    """The parts of the page look alike, and so do the contexts: only the reading position moves.
    The agent goes on until it is told that there is no more."""
    sings = [(1, 1), (1, 2), (2, 2)]
    walker = Walker(sings, [SING, SING, ANSWER], turns=lambda observed: PAGE_END in observed)
    made = compare(walker, SETTINGS)
    observations = [one.observation for one in made.trajectory.rounds[:-1]]
    assert made.trajectory.ending is Ending.ANSWERED
    assert PAGE_END in (observations[-1] or "")
    assert len(set(observations)) < len(observations) - 3
    assert made.trajectory.repeated_rounds >= 3


def test_a_page_that_is_read_again_and_again_is_a_longer_circle() -> None:
    made = compare(circle(0, 1), replace(SETTINGS, max_rounds=30))
    alike = made.trajectory.repeated_rounds
    made = compare(replace(circle(0, 1), acts=[READ] * 2), replace(SETTINGS, max_rounds=30))
    observations = [one.observation or "" for one in made.trajectory.rounds[:-1]]
    parts = observations.index(next(text for text in observations if PAGE_END in text)) + 1
    assert parts >= 3
    assert observations[parts : 2 * parts] == observations[:parts]
    assert alike - made.trajectory.repeated_rounds == parts - 1


class WaveringRetriever(FakeRetriever):
    """Answers otherwise from its seventh call on."""

    def search(self, query: str, top_k: int) -> list[Passage]:
        found = super().search(query, top_k)
        return found if len(self.queries) < 7 else [Passage(query, "Ann was born in Oslo.")]


def test_a_retriever_that_answers_otherwise_ends_the_circle() -> None:
    searches = [(1, 1), (1, 2), (2, 2)]
    walker = Walker(searches, [SEARCH, SEARCH, ANSWER], turns=lambda observed: "Oslo" in observed)
    assert compare(walker, SETTINGS).trajectory.ending is Ending.MAX_ROUNDS
    long = make(walker, SETTINGS, False, WaveringRetriever(PAGES))
    short = make(walker, SETTINGS, True, WaveringRetriever(PAGES))
    assert replace(short.trajectory, repeated_rounds=0) == long.trajectory
    assert short.queries == long.queries
    assert short.trajectory.ending is Ending.ANSWERED
    assert len(short.trajectory.rounds) == 8
    assert short.trajectory.repeated_rounds == 5  # all but the first two and the answer


# Where it is off


def test_the_whole_history_never_comes_back() -> None:
    for unbounded in ({"context": "full"}, {"keep_steps": "all"}):
        made = compare(circle(0, 1), replace(SETTINGS, **unbounded))  # type: ignore[arg-type]
        assert len(made.prompts) == len(made.trajectory.rounds) == 20
        assert made.trajectory.repeated_rounds == 0


def test_with_chance_every_round_is_sampled() -> None:
    made = make(circle(0, 1), SETTINGS, True, sampling=Sampling(temperature=0.01))
    assert len(made.prompts) == 20
    assert made.trajectory.repeated_rounds == 0


# All of it together

# What goes on comes more often than what may end a trajectory at once.
ACTS = [SEARCH, NOTHING, READ, SING, INNER_STOP, RAMBLE] * 2 + [IDLE, ANSWER]


@st.composite
def walkers(draw: st.DrawFn) -> Walker:
    places = draw(st.integers(2, 5))
    place = st.integers(0, places - 1)
    ways = draw(st.lists(st.tuples(place, place), min_size=places, max_size=places))
    acts = draw(st.lists(st.sampled_from(ACTS), min_size=places, max_size=places))
    return Walker(ways, acts, draw(st.booleans()))


agent_settings = st.builds(
    AgentSettings,
    context=st.just("memory"),
    max_rounds=st.integers(8, 24),
    max_response_tokens=st.integers(300, 2000) | st.just(20_000),
    max_round_tokens=st.integers(20, 80) | st.just(300),
    max_observation_tokens=st.integers(70, 140),
    prefill_memory=st.booleans(),
    on_no_action=st.sampled_from(["stop", "feedback", "feedback"]),
    newest=st.sampled_from(["full", "short"]),
    keep_steps=st.integers(1, 3),
)


@settings(max_examples=100)
@given(walkers(), agent_settings, st.integers(300, 700) | st.just(100_000))
def test_any_walk_is_the_same_both_ways(
    walker: Walker, limits: AgentSettings, max_model_len: int
) -> None:
    made = compare(walker, limits, max_model_len=max_model_len)
    assert len(set(made.prompts)) == len(made.prompts), "no context is sampled twice"


# One context


def test_what_is_known_of_a_context() -> None:
    seen = SeenContexts()
    stopped = Sampled([7, 8, 9], [-0.1, -0.2, -0.3], "stop")
    seen.remember(GenerationRequest([1, 2], 5, 1), stopped)
    for allowed in (3, 4, 5, 6, 100):
        assert seen.recall(GenerationRequest([1, 2], allowed, 9)) == stopped
    assert seen.recall(GenerationRequest([1, 2], 2, 9)) == Sampled([7, 8], [-0.1, -0.2], "length")
    for other in ([1], [1, 2, 3], [2, 1], []):
        assert seen.recall(GenerationRequest(other, 5, 9)) is None


def test_what_was_cut_tells_nothing_of_how_it_goes_on() -> None:
    seen = SeenContexts()
    cut = Sampled([7, 8], [-0.1, -0.2], "length")
    seen.remember(GenerationRequest([1, 2], 2, 1), cut)
    assert seen.recall(GenerationRequest([1, 2], 2, 2)) == cut
    assert seen.recall(GenerationRequest([1, 2], 1, 2)) == Sampled([7], [-0.1], "length")
    assert seen.recall(GenerationRequest([1, 2], 3, 2)) is None
