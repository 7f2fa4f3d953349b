"""One trajectory as a state machine (specification section 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mempo.agent.context import AgentMemory
from mempo.agent.conversation import Conversation
from mempo.agent.state_machine import NO_ACTION_FEEDBACK, Agent, AgentSettings
from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig
from mempo.engine.interface import Sampling
from mempo.trajectory import Ending, Objective, SpanKind, Task, Trajectory
from tests.support.fakes import FakeRetriever, Piece, ScriptedEngine
from tests.support.small_tokenizers import (
    SYSTEM,
    TEMPLATES,
    TOKENIZERS,
    make_conversation,
    make_tokenizer,
)

PAGES = {"Ann": "Ann was born in Rome.", "Rome": "Rome is a town. " * 12}
TASK = Task("t", (Objective("Who?", ("Ann",)),))
QUESTION = "Who is Ann?"
SETTINGS = AgentSettings(
    context="full",
    max_rounds=8,
    max_response_tokens=2000,
    max_round_tokens=300,
    max_observation_tokens=400,
)
SEARCH = "<think>so</think><search>Ann</search>"
ACCESS = "<mem>Ann: Rome</mem><think>page</think><access>Rome</access>"
ANSWER = "<mem>Ann: Rome, a town</mem><think>done</think><answer>Ann</answer>"


class Run:
    """One trajectory driven to its end with a script."""

    def __init__(
        self,
        pieces: Any,
        settings: AgentSettings = SETTINGS,
        kind: str = "tags",
        template: str = "qwen2.5",
        max_model_len: int = 100_000,
        question: str = QUESTION,
    ) -> None:
        self.conversation: Conversation = make_conversation(kind, template)
        self.engine = ScriptedEngine(self.conversation, pieces, max_model_len)
        prompt = self.conversation.prompt_ids(question)
        self.trajectory = Trajectory(TASK, 0, 0, len(prompt))
        self.retriever = FakeRetriever(PAGES)
        session = ToolBox({"default": self.retriever}, RetrieverConfig()).session(TASK)
        agent = Agent(self.trajectory, prompt, self.conversation, session, settings, max_model_len)
        while True:
            if agent.pending_call is not None:
                agent.observe(session.call(*agent.pending_call))
            elif (request := agent.next_request()) is not None:
                self.engine.submit("0/0", request.prompt_ids, request.max_tokens, 1, Sampling())
                (made,) = self.engine.step()
                agent.receive(made.ids, made.logprobs, made.finish_reason)
            else:
                break
        assert self.trajectory.ending is not None
        for sequence in self.trajectory.sequences:
            lists = (sequence.ids, sequence.mask, sequence.logprobs, sequence.kinds)
            assert {len(part) for part in lists} == {len(sequence)}

    @property
    def prompts(self) -> list[list[int]]:
        return [request.prompt_ids for request in self.engine.requests]

    def policy_ids(self, sequence: int = -1) -> list[int]:
        chosen = self.trajectory.sequences[sequence]
        return [t for t, is_policy in zip(chosen.ids, chosen.mask, strict=True) if is_policy]

    def encode(self, text: str) -> list[int]:
        return self.conversation.encode(text)


def count(text: str, kind: str = "tags") -> int:
    return len(make_conversation(kind).encode(text))


# Endings


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_answered(kind: str, template: str) -> None:
    run = Run([SEARCH, ACCESS, ANSWER], kind=kind, template=template)
    trajectory = run.trajectory
    assert trajectory.ending == Ending.ANSWERED
    assert trajectory.answer == "Ann"
    assert [r.text for r in trajectory.rounds] == [SEARCH, ACCESS, ANSWER]
    assert [(r.action, r.argument) for r in trajectory.rounds] == [
        ("search", "Ann"),
        ("access", "Rome"),
        ("answer", "Ann"),
    ]
    assert trajectory.rounds[0].observation == (
        "<information>1. Ann: Ann was born in Rome.</information>"
    )
    page = f"Rome: {PAGES['Rome']}"
    assert trajectory.rounds[1].observation_short == f"<information>{page[:100]}</information>"
    assert run.retriever.queries == ["Ann", "Rome"]
    assert (trajectory.tool_calls, trajectory.tool_failures, trajectory.tool_errors) == (2, 0, 0)
    glue = [
        run.conversation.observation_ids(r.observation)
        for r in trajectory.rounds
        if r.observation is not None
    ]
    a, b, c = (run.encode(text) for text in (SEARCH, ACCESS, ANSWER))
    prompt = run.conversation.prompt_ids(QUESTION)
    assert trajectory.sequences[0].ids == [*prompt, *a, *glue[0], *b, *glue[1], *c]
    assert trajectory.sequences[0].mask == (
        [0] * len(prompt)
        + [1] * len(a)
        + [0] * len(glue[0])
        + [1] * len(b)
        + [0] * len(glue[1])
        + [1] * len(c)
    )


def test_snapshots_are_prefixes_and_what_the_engine_saw() -> None:
    run = Run([SEARCH, ACCESS, ANSWER])
    ids = run.trajectory.sequences[0].ids
    for round_, prompt in zip(run.trajectory.rounds, run.prompts, strict=True):
        assert ids[: round_.snapshot_length] == prompt
        assert round_.start == round_.snapshot_length
        assert run.conversation.decode(ids[round_.start : round_.end]) == round_.text
    assert run.trajectory.sequences[0].ids[: run.trajectory.prompt_length] == run.prompts[0]
    memory = run.trajectory.rounds[1].memory_span
    assert memory is not None
    first, last = memory
    assert run.conversation.decode(ids[first:last]) == "<mem>Ann: Rome</mem>"
    assert not run.trajectory.rounds[0].is_scored
    assert run.trajectory.rounds[1].is_scored


def test_max_rounds_does_not_execute_the_last_action() -> None:
    run = Run([SEARCH, ACCESS], replace(SETTINGS, max_rounds=2))
    assert run.trajectory.ending == Ending.MAX_ROUNDS
    assert run.retriever.queries == ["Ann"]
    assert run.trajectory.tool_calls == 1
    assert len(run.trajectory.rounds) == 2
    assert run.trajectory.rounds[1].observation is None
    assert run.trajectory.answer is None
    assert run.trajectory.sequences[0].mask[-1] == 1


def test_an_answer_in_the_last_round_counts() -> None:
    run = Run([SEARCH, ANSWER], replace(SETTINGS, max_rounds=2))
    assert run.trajectory.ending == Ending.ANSWERED


def test_response_budget_by_generation() -> None:
    first = count(SEARCH) + len(
        make_conversation("tags").observation_ids(
            "<information>1. Ann: Ann was born in Rome.</information>"
        )
    )
    run = Run([SEARCH, "<think>" + "word " * 900], replace(SETTINGS, max_response_tokens=first + 7))
    assert run.trajectory.ending == Ending.RESPONSE_BUDGET
    assert [request.max_tokens for request in run.engine.requests] == [first + 7, 7]
    sequence = run.trajectory.sequences[0]
    assert len(sequence) - run.trajectory.prompt_length == first + 7
    assert len(run.trajectory.rounds) == 2
    assert run.trajectory.rounds[1].action is None


@pytest.mark.parametrize("spare", [0, 1])
def test_trl_5521_response_budget_by_an_observation(spare: int) -> None:
    """Nothing of an observation that does not fit enters the trajectory."""
    observation = make_conversation("tags").observation_ids(
        "<information>1. Ann: Ann was born in Rome.</information>"
    )
    budget = count(SEARCH) + len(observation) + spare
    run = Run([SEARCH, "<think>" + "a " * 50], replace(SETTINGS, max_response_tokens=budget))
    assert run.trajectory.ending == Ending.RESPONSE_BUDGET
    assert len(run.prompts) == 1 + spare
    after = len(run.trajectory.sequences[0]) - run.trajectory.prompt_length
    assert after == (count(SEARCH) if spare == 0 else budget)
    assert sum(run.trajectory.sequences[0].mask) == count(SEARCH) + spare


def test_equal_limits_end_the_trajectory_by_its_own() -> None:
    limits = replace(SETTINGS, max_round_tokens=20, max_response_tokens=20)
    run = Run(["<think>" + "word " * 90], limits)
    assert run.trajectory.ending == Ending.RESPONSE_BUDGET


@pytest.mark.parametrize(("room", "requests"), [(-96, 0), (-4, 0), (0, 0), (4, 1)])
def test_verl_4703_prime_rl_1938_context_budget_of_the_prompt(room: int, requests: int) -> None:
    length = len(make_conversation("tags").prompt_ids(QUESTION))
    run = Run(["<think>" + "word " * 90], max_model_len=length + room)
    assert run.trajectory.ending == Ending.CONTEXT_BUDGET
    assert [request.max_tokens for request in run.engine.requests] == [4] * requests
    assert len(run.trajectory.rounds) == requests


def test_context_budget_by_an_observation() -> None:
    conversation = make_conversation("tags")
    observation = "<information>1. Ann: Ann was born in Rome.</information>"
    fits = (
        len(conversation.prompt_ids(QUESTION))
        + count(SEARCH)
        + len(conversation.observation_ids(observation))
    )
    run = Run([SEARCH], max_model_len=fits)
    assert run.trajectory.ending == Ending.CONTEXT_BUDGET
    assert len(run.prompts) == 1
    run = Run([SEARCH, "<think>more"], max_model_len=fits + 1)
    assert run.trajectory.ending == Ending.CONTEXT_BUDGET
    assert len(run.prompts) == 2


def test_nemo_gym_2931_memory_and_thought_for_ever() -> None:
    run = Run(lambda number: "<mem>a</mem><think>b</think>" * 200)
    assert run.trajectory.ending == Ending.NO_ACTION
    assert len(run.prompts) == 1
    run = Run(lambda number: "<mem>a</mem><think>b</think>")
    assert run.trajectory.ending == Ending.NO_ACTION
    assert run.policy_ids()[-1] == run.conversation.tokenizer.eos_token_id


def test_feedback_goes_on_until_max_rounds() -> None:
    limits = replace(SETTINGS, on_no_action="feedback", max_rounds=3)
    run = Run(lambda number: "<mem>a</mem><think>b</think>", limits)
    assert run.trajectory.ending == Ending.MAX_ROUNDS
    assert len(run.trajectory.rounds) == 3
    assert run.trajectory.rounds[0].observation == (
        f"<information>{NO_ACTION_FEEDBACK}</information>"
    )
    assert run.trajectory.tool_calls == 0
    answered = Run(["<think>b</think>", ANSWER], limits)
    assert answered.trajectory.ending == Ending.ANSWERED


def test_max_round_tokens_ends_the_round_where_it_is() -> None:
    limits = replace(SETTINGS, max_round_tokens=5)
    run = Run(["<think>" + "word " * 90], limits)
    assert run.trajectory.ending == Ending.NO_ACTION
    assert len(run.policy_ids()) == 5
    run = Run(
        ["<think>" + "word " * 90, "<answer>Ann</answer>"], replace(limits, on_no_action="feedback")
    )
    assert run.trajectory.ending == Ending.ANSWERED
    assert [request.max_tokens for request in run.engine.requests] == [5, 5]


# Stops


def test_a_stop_inside_an_unclosed_memory_is_no_action() -> None:
    head, tail = "<mem>he wrote <search>x</search>", " twice</mem><search>Ann</search>"
    run = Run([head, tail, ANSWER])
    trajectory = run.trajectory
    assert [r.text for r in trajectory.rounds] == [head + tail, ANSWER]
    assert (trajectory.rounds[0].action, trajectory.rounds[0].argument) == ("search", "Ann")
    assert run.retriever.queries == ["Ann"]
    assert run.prompts[1] == [*run.prompts[0], *run.encode(head)]
    assert run.engine.requests[1].max_tokens == 300 - count(head)
    assert trajectory.sequences[0].mask[len(run.prompts[0]) : trajectory.rounds[0].end] == (
        [1] * (count(head) + count(tail))
    )


def test_a_stop_inside_a_memory_at_the_round_limit() -> None:
    """The round has no token left: with feedback the next round follows, else it ends."""
    head = "<mem>he wrote <search>x</search>"
    limits = replace(SETTINGS, max_round_tokens=count(head))
    assert Run([head], limits).trajectory.ending == Ending.NO_ACTION
    short = "<answer>Ann</answer>"
    assert count(short) <= count(head)
    run = Run([head, short], replace(limits, on_no_action="feedback"))
    assert run.trajectory.ending == Ending.ANSWERED
    assert [r.text for r in run.trajectory.rounds] == [head, short]


def test_vllm_1973_vllm_3672_a_token_that_runs_past_the_tag_is_cut() -> None:
    """The text ends with the stop, and the ids say the same text."""
    conversation = make_conversation("merged")
    over = conversation.tokenizer.convert_tokens_to_ids("><")
    before = conversation.encode("<think>so</think><search>Ann</search")
    run = Run([[*before, over], ANSWER], kind="merged")
    round_ = run.trajectory.rounds[0]
    sequence = run.trajectory.sequences[0]
    assert round_.text == SEARCH
    assert round_.argument == "Ann"
    ids = sequence.ids[round_.start : round_.end]
    assert conversation.decode(ids) == SEARCH
    assert ids == [*before, *conversation.encode(">")]
    assert sequence.mask[round_.start : round_.end] == [1] * len(before) + [0]
    assert sequence.logprobs[round_.end - 1] is None
    assert round_.observation is not None
    assert run.prompts[1] == [
        *run.prompts[0],
        *ids,
        *conversation.observation_ids(round_.observation),
    ]


def test_trl_5144_ids_that_are_not_the_tokenizers_own_choice() -> None:
    conversation = make_conversation("merged")
    one_byte = make_tokenizer("merged").convert_tokens_to_ids
    odd = [one_byte(c) for c in "<think>so</think><search>Ann</search>"]
    assert odd != conversation.encode(SEARCH)
    run = Run([odd, ANSWER], kind="merged")
    assert run.trajectory.rounds[0].text == SEARCH
    assert run.policy_ids() == [*odd, *conversation.encode(ANSWER)]
    assert run.prompts[1][len(run.prompts[0]) :][: len(odd)] == odd


@pytest.mark.parametrize("template", TEMPLATES)
def test_agent_r1_30_end_of_turn(template: str) -> None:
    """Sampled: mask 1 and not doubled. Added after a stop: mask 0."""
    limits = replace(SETTINGS, on_no_action="feedback")
    run = Run(["<think>so</think>", SEARCH, ANSWER], limits, template=template)
    end = run.conversation.tokenizer.eos_token_id
    sequence = run.trajectory.sequences[0]
    after_prompt = range(run.trajectory.prompt_length, len(sequence))
    marks = [i for i in after_prompt if sequence.ids[i] == end]
    # One for each of two turns and of the two user turns between; the answer's turn is open.
    assert [sequence.mask[i] for i in marks] == [1, 0, 0, 0]
    assert sequence.kinds[marks[0]] == SpanKind.OTHER
    assert marks[0] == run.trajectory.rounds[0].end - 1
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "<think>so</think>"},
        {"role": "user", "content": run.trajectory.rounds[0].observation},
    ]
    if template != "qwen3":
        assert run.prompts[1] == run.conversation.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )


@pytest.mark.parametrize(
    ("text", "action", "queries"),
    [
        ("<search>foo", None, []),
        ("</search>", None, []),
        ("<search></search>", "search", []),
        ("<search>  \n</search>", "search", []),
        ("<search>__import__('os').abort()</search>", "search", ["__import__('os').abort()"]),
    ],
)
def test_verl_7044_trl_4890_unclosed_and_empty_calls(text: str, action: Any, queries: Any) -> None:
    run = Run([text, "<answer>Ann</answer>"])
    first = run.trajectory.rounds[0]
    assert first.action == action
    assert run.retriever.queries == queries
    if action is None:
        assert run.trajectory.ending == Ending.NO_ACTION
    else:
        assert run.trajectory.ending == Ending.ANSWERED
        assert (run.trajectory.tool_calls, run.trajectory.tool_failures) == (1, 1)
        assert first.tool_failed


def test_a_closing_tag_that_stands_alone_is_not_asked_about_again() -> None:
    """NeMo-Gym 2931: a model that repeats it would be called once for each."""
    run = Run(lambda number: "</search>" * 50)
    assert run.trajectory.ending == Ending.NO_ACTION
    assert len(run.prompts) == 1
    assert run.trajectory.rounds[0].text == "</search>"


def test_a_stop_inside_an_unclosed_action_goes_on() -> None:
    run = Run(["<answer>Ann</search>", " of Rome</answer>"])
    assert run.trajectory.answer == "Ann</search> of Rome"


# Counting


def test_total_and_peak_tokens() -> None:
    run = Run([SEARCH, ACCESS, ANSWER])
    sizes = [len(prompt) for prompt in run.prompts]
    texts = [count(text) for text in (SEARCH, ACCESS, ANSWER)]
    assert run.trajectory.total_tokens == sum(sizes) + sum(texts)
    assert run.trajectory.peak_tokens == sizes[2] + texts[2]
    memory = Run(
        ["<think>" + "a " * 200 + "</think><search>Ann</search>", ACCESS, ACCESS, ANSWER],
        replace(SETTINGS, context="memory", max_round_tokens=500),
    )
    sizes = [
        len(request.prompt_ids) + len(request.generation.ids) for request in memory.engine.requests
    ]
    assert memory.trajectory.total_tokens == sum(sizes)
    assert memory.trajectory.peak_tokens == max(sizes)
    assert max(sizes) > sizes[-1]


def test_a_wrong_number_of_logprobs_is_an_error() -> None:
    conversation = make_conversation("tags")
    session = ToolBox({"default": FakeRetriever({})}, RetrieverConfig()).session(TASK)
    prompt = conversation.prompt_ids(QUESTION)
    trajectory = Trajectory(TASK, 0, 0, len(prompt))
    agent = Agent(trajectory, prompt, conversation, session, SETTINGS, 1000)
    assert agent.next_request() is not None
    with pytest.raises(ValueError, match="task t, epoch 0, sample 0, round 1: the engine returned"):
        agent.receive([1, 2], [-0.5], "stop")


def test_an_end_of_turn_sampled_after_the_action_is_cut_and_added_as_glue() -> None:
    conversation = make_conversation("tags")
    session = ToolBox({"default": FakeRetriever(PAGES)}, RetrieverConfig()).session(TASK)
    prompt = conversation.prompt_ids(QUESTION)
    trajectory = Trajectory(TASK, 0, 0, len(prompt))
    agent = Agent(trajectory, prompt, conversation, session, SETTINGS, 1000)
    assert agent.next_request() is not None
    ids = conversation.encode(SEARCH)
    end = conversation.tokenizer.eos_token_id
    agent.receive([*ids, end], [-0.5] * (len(ids) + 1), "stop")
    agent.observe(session.call("search", "Ann"))
    request = agent.next_request()
    assert request is not None
    assert request.prompt_ids[len(prompt) + len(ids)] == end
    assert request.prompt_ids[len(prompt) + len(ids) + 1] != end
    assert trajectory.sequences[0].policy_tokens == len(ids)


# Prefilled memory


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("again", ["", "<mem>", "\n<mem>"])
def test_a_prefilled_memory_tag(kind: str, context: Any, again: str) -> None:
    rest = "Ann: Rome</mem><think>page</think><access>Rome</access>"
    limits = replace(SETTINGS, prefill_memory=True, context=context, max_observation_tokens=900)
    run = Run([SEARCH, again + rest, "x</mem><answer>Ann</answer>"], limits, kind=kind)
    first, second, third = run.trajectory.rounds
    assert first.text == SEARCH
    assert second.text == (again or "<mem>") + rest
    assert second.mem == "Ann: Rome"
    assert third.text == "<mem>x</mem><answer>Ann</answer>"
    opening = run.encode("<mem>")
    assert run.prompts[1][-len(opening) :] == opening
    assert run.prompts[0][-len(opening) :] != opening
    sequence = run.trajectory.sequences[second.sequence]
    assert sequence.ids[: second.snapshot_length] == run.prompts[1][: -len(opening)]
    assert second.start == second.snapshot_length
    given = 0 if again else len(opening)
    mask = sequence.mask[second.start : second.end]
    assert mask == [0] * given + [1] * (len(mask) - given)
    assert run.conversation.decode(sequence.ids[second.start : second.end]) == second.text
    later = run.conversation.decode(run.prompts[2])
    assert later.count("Ann: Rome</mem>") == 1
    assert later.count("<mem>Ann: Rome</mem>") == 1
    assert later.count("<mem>") == 2  # the second round's own, and the third's prefilled one
    span = second.memory_span
    assert span is not None
    held = run.conversation.decode(sequence.ids[span[0] : span[1]])
    assert held.strip() in ("<mem>Ann: Rome</mem>", "<mem>Ann: Rome</mem><")
    assert run.trajectory.total_tokens == sum(
        len(request.prompt_ids) + len(request.generation.ids) for request in run.engine.requests
    )


# Memory mode


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("template", ["qwen2.5", "llama3", "smollm2"])
@pytest.mark.parametrize("newest", ["full", "short"])
@pytest.mark.parametrize("keep_steps", [1, 2, "all"])
def test_memory_contexts_equal_the_template_on_its_messages(
    kind: str, template: str, newest: Any, keep_steps: Any
) -> None:
    limits = replace(
        SETTINGS,
        context="memory",
        newest=newest,
        keep_steps=keep_steps,
        max_observation_tokens=900,
        on_no_action="feedback",
        max_response_tokens=9000,
    )
    quiet = "<mem>nothing</mem><think>hm</think>"
    pieces: list[Piece] = [SEARCH, ACCESS, quiet, ACCESS, ANSWER]
    run = Run(pieces, limits, kind=kind, template=template)
    assert run.trajectory.ending == Ending.ANSWERED
    memory = AgentMemory(SYSTEM)
    memory.add_prompt(QUESTION)
    assert len(run.prompts) == len(run.trajectory.sequences) == 5
    for index, (round_, prompt) in enumerate(zip(run.trajectory.rounds, run.prompts, strict=True)):
        expected = run.conversation.tokenizer.apply_chat_template(
            memory.messages(newest=newest, keep_steps=keep_steps),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        assert prompt == expected
        assert round_.sequence == index
        sequence = run.trajectory.sequences[index]
        assert sequence.ids[: round_.snapshot_length] == prompt
        assert sequence.mask == [0] * len(prompt) + [1] * (len(sequence) - len(prompt))
        memory.add_generation(round_.text)
        if round_.observation is not None:
            memory.add_result("tool", round_.observation, round_.observation_short)


def test_the_prompt_is_shared_by_all_sequences() -> None:
    run = Run([SEARCH, ACCESS, ACCESS, ANSWER], replace(SETTINGS, context="memory"))
    prompt = run.conversation.prompt_ids(QUESTION)
    assert run.trajectory.sequences[0].ids[: run.trajectory.prompt_length] == prompt
    assert all(s.ids[: len(prompt)] == prompt for s in run.trajectory.sequences)
    shown = [run.conversation.decode(p) for p in run.prompts]
    assert SEARCH not in shown[2]
    assert shown[2].count(ACCESS) == 1
