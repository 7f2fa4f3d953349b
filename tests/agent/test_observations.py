"""Token budgets of what the agent reads (specification section 3)."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mempo.agent import observations, tools
from mempo.agent.conversation import Conversation
from mempo.agent.inert import make_inert
from mempo.agent.observations import MORE_FOLLOWS, MORE_FOLLOWS_BRIEFLY, fair_shares, show
from mempo.agent.state_machine import Agent, AgentSettings
from mempo.agent.tools import ToolBox, ToolResult, ToolSession
from mempo.config import RetrieverConfig
from mempo.retrieval.base import InMemoryRetriever, Page, Passage
from mempo.runtime.errors import MempoError
from mempo.trajectory import Ending, Objective, Task, Trajectory
from tests.support.small_tokenizers import TOKENIZERS, make_conversation, template_text

TASK = Task("t", (Objective("Who?", ("Ann",)),), corpus="c")
OPEN, CLOSE = "<information>", "</information>"
LETTERS = {
    "ascii": "abcdefghij",
    "mixed": "abcäöü—🐙é\u0301中文字\u200d\n",
    "cjk": "肖亮教授是我",
}
kinds = pytest.mark.parametrize("kind", TOKENIZERS)


class Library(InMemoryRetriever):
    """One page, and passages for every query."""

    def __init__(self, page: str = "", passages: tuple[Passage, ...] = ()) -> None:
        self.page, self.passages = page, passages

    def search(self, query: str, top_k: int) -> list[Passage]:
        return list(self.passages)

    def open_page(self, key: str) -> Page | None:
        return Page("Tolm", self.page)


def session(library: Library, **settings: Any) -> ToolSession:
    return ToolBox({"c": library}, RetrieverConfig(**settings)).session(TASK)


@cache
def word_conversation() -> Conversation:
    """Every run of letters between spaces is one token; so is each tag."""
    model = models.WordLevel({"[UNK]": 0, "<end>": 1}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([OPEN, CLOSE])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<end>",
        chat_template=template_text("chatml"),
        clean_up_tokenization_spaces=False,
    )
    return Conversation(fast, "Be brief.")


def page_text(characters: int, kind: str = "ascii") -> str:
    """Different words, so that a part that is lost or doubled shows."""
    rng = random.Random(f"{characters}/{kind}")
    alphabet = LETTERS[kind]
    gap = "" if kind == "cjk" else " "
    text = gap.join(
        "".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(characters // 2)
    )
    return text[:characters]


def read_to_the_end(
    library: Library, conversation: Conversation, budget: int, **settings: Any
) -> list[str]:
    """The observations of one access after the other until there is no more, without tags."""
    tool = session(library, **settings)
    seen: list[str] = []
    for _ in range(20_000):
        result = tool.call("access", "Tolm")
        shown = show(result, conversation, budget)
        assert len(conversation.encode(shown.whole)) <= budget
        assert shown.whole.startswith(OPEN)
        assert shown.whole.endswith(CLOSE)
        if result.page is None:
            assert tools.PAGE_END in shown.whole or budget < 100
            return seen
        tool.mark_read(result, shown.characters)
        seen.append(shown.whole.removeprefix(OPEN).removesuffix(CLOSE))
    raise AssertionError("the page has no end")


def bodies(parts: list[str]) -> str:
    """What the parts say of the page: without heads and without the sentence at their ends."""
    text = ""
    for number, part in enumerate(parts, start=1):
        head = "Tolm: " if number == 1 else f"Tolm (part {number}): "
        body = part.removeprefix(head)
        if number < len(parts):
            ended = [s for s in (MORE_FOLLOWS, MORE_FOLLOWS_BRIEFLY) if body.endswith("\n" + s)]
            assert ended, part
            body = body.removesuffix("\n" + ended[0])
        text += body
    return text


# Pages


@kinds
@pytest.mark.parametrize("budget", [1024, 4096])
@pytest.mark.parametrize("letters", ["ascii", "mixed", "cjk"])
def test_a_long_page_is_read_to_its_end_every_character_once(
    kind: str, budget: int, letters: str
) -> None:
    text = page_text(56_000 if letters == "ascii" else 12_000, letters)
    conversation = make_conversation(kind)
    parts = read_to_the_end(Library(text), conversation, budget)
    assert bodies(parts) == text
    assert all(MORE_FOLLOWS in part for part in parts[:-1])
    assert MORE_FOLLOWS not in parts[-1]
    # All but the last use their budget: a part lacks at most the word that it would cut.
    longest_word = 40 * 4
    used = [conversation.count(OPEN + part + CLOSE) for part in parts]
    assert all(count > budget - longest_word for count in used[:-1])


@kinds
@pytest.mark.parametrize("letters", ["ascii", "mixed", "cjk"])
def test_a_page_is_read_to_its_end_in_a_budget_of_64(kind: str, letters: str) -> None:
    text = page_text(1500, letters)
    assert bodies(read_to_the_end(Library(text), make_conversation(kind), 64)) == text


@kinds
def test_the_smallest_budget_still_moves(kind: str) -> None:
    """The head and the sentence make room for the text."""
    text = page_text(200)
    conversation = make_conversation(kind)
    budget = conversation.empty_observation_tokens + 8
    parts = read_to_the_end(Library(text), conversation, budget)
    for part in parts:
        body = part.removeprefix("Tolm: ").removesuffix("\n" + MORE_FOLLOWS_BRIEFLY)
        assert text.startswith(body)
        text = text.removeprefix(body)
    assert text == ""


def test_a_budget_that_the_tags_alone_fill_is_an_error() -> None:
    conversation = make_conversation("bytes")
    with pytest.raises(MempoError, match=r"take 27 tokens.*raise rollout.max_observation_tokens"):
        show(ToolResult("x", "x"), conversation, 27 + 7)


def test_word_tokens_of_a_page_worked_out_by_hand() -> None:
    """Budget 30: 2 tags, 1 or 3 of the head, 12 of the sentence; 15 and 13 words are left. The
    last 19 need no sentence. The space at a cut belongs to the next part."""
    words = [f"w{i}" for i in range(60)]
    parts = read_to_the_end(Library(" ".join(words)), word_conversation(), 30)
    assert len(MORE_FOLLOWS.split()) == 12
    assert parts == [
        "Tolm: " + " ".join(words[:15]) + "\n" + MORE_FOLLOWS,
        "Tolm (part 2):  " + " ".join(words[15:28]) + "\n" + MORE_FOLLOWS,
        "Tolm (part 3):  " + " ".join(words[28:41]) + "\n" + MORE_FOLLOWS,
        "Tolm (part 4):  " + " ".join(words[41:]),
    ]


def test_page_chars_bound_a_part_as_well() -> None:
    text = page_text(2500)
    parts = read_to_the_end(Library(text), word_conversation(), 100_000, page_chars=1000)
    assert bodies(parts) == text
    assert [len(part.split(": ", 1)[1]) for part in parts] == [
        1000 + 1 + len(MORE_FOLLOWS),
        1000 + 1 + len(MORE_FOLLOWS),
        500,
    ]


def test_the_short_text_of_a_part_holds_nothing_that_was_not_shown() -> None:
    tool = session(Library("abcdefgh " * 100))
    result = tool.call("access", "Tolm")
    shown = show(result, make_conversation("bytes"), 27 + 90)
    assert shown.characters == 27  # three words: 90 less "Tolm: " and the sentence with its line
    assert shown.short == f"{OPEN}Tolm: {'abcdefgh ' * 3}{CLOSE}"
    whole = show(result, make_conversation("bytes"), 5000)
    assert whole.short == f"{OPEN}{('Tolm: ' + 'abcdefgh ' * 100)[:100]}{CLOSE}"
    assert (whole.characters, whole.short_characters) == (900, 94)


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=400),
    budget=st.integers(min_value=64, max_value=300),
    kind=st.sampled_from(TOKENIZERS),
)
def test_no_character_is_lost_or_doubled(text: str, budget: int, kind: str) -> None:
    tool = session(Library(text))
    read = ""
    for _ in range(len(text) + 2):
        result = tool.call("access", "Tolm")
        if result.page is None:
            break
        shown = show(result, make_conversation(kind), budget)
        assert result.page.body[: shown.characters] in shown.whole
        read += result.page.body[: shown.characters]
        tool.mark_read(result, shown.characters)
    assert read == make_inert(text)


# Search results


def passages(*sizes: int) -> tuple[Passage, ...]:
    return tuple(
        Passage(f"T{number}", " ".join(f"{'abcde'[number - 1]}{i}" for i in range(size)))
        for number, size in enumerate(sizes, start=1)
    )


def found_lines(conversation: Conversation, found: tuple[Passage, ...], budget: int) -> list[str]:
    result = session(Library(passages=found)).call("search", "q")
    shown = show(result, conversation, budget)
    assert shown.short == shown.whole
    assert conversation.count(shown.whole) <= budget
    assert shown.whole.endswith(CLOSE)
    return shown.whole.removeprefix(OPEN).removesuffix(CLOSE).split("\n")


def test_word_tokens_of_a_search_worked_out_by_hand() -> None:
    """Budget 200 less 2 tags is 198. The short passages take 2 + 10 each, which leaves 174: 58 for
    each long one, of which 2 are its number and title and 1 the mark of the cut."""
    lines = found_lines(word_conversation(), passages(10, 200, 200, 200, 10), 200)
    assert [len(line.split()) for line in lines] == [12, 58, 58, 58, 12]
    for number, letter in ((2, "b"), (3, "c"), (4, "d")):
        words = " ".join(f"{letter}{i}" for i in range(55))
        assert lines[number - 1] == f"{number}. T{number}: {words} …"
    assert lines[0] == "1. T1: " + " ".join(f"a{i}" for i in range(10))
    assert lines[4] == "5. T5: " + " ".join(f"e{i}" for i in range(10))


def test_what_does_not_divide_goes_to_the_longest() -> None:
    """201 - 2 = 199: 175 for three passages is 58, 58, 59."""
    lines = found_lines(word_conversation(), passages(10, 200, 200, 200, 10), 201)
    assert [len(line.split()) for line in lines] == [12, 58, 58, 59, 12]


def test_passages_that_fit_stay_as_they_are() -> None:
    found = passages(10, 20, 30)
    budget = 2 + 12 + 22 + 32
    assert "…" not in "".join(found_lines(word_conversation(), found, budget))
    assert found_lines(word_conversation(), found, budget)[2].endswith(" c29")
    assert [len(line.split()) for line in found_lines(word_conversation(), found, budget - 1)] == [
        12,
        22,
        31,
    ]


@kinds
@pytest.mark.parametrize("budget", [256, 1024])
@pytest.mark.parametrize("letters", ["ascii", "mixed", "cjk"])
def test_all_passages_are_seen(kind: str, budget: int, letters: str) -> None:
    sizes = (5000, 60, 5000, 900, 5000)
    found = tuple(
        Passage(f"Title {number}", page_text(size, letters).replace("\n", " "))
        for number, size in enumerate(sizes, start=1)
    )
    conversation = make_conversation(kind)
    lines = found_lines(conversation, found, budget)
    assert len(lines) == 5
    for number, (line, passage) in enumerate(zip(lines, found, strict=True), start=1):
        head = f"{number}. Title {number}: "
        assert line.startswith(head)
        body = line.removeprefix(head)
        assert body == passage.text or (
            body.endswith(observations.CUT)
            and passage.text.startswith(body.removesuffix(observations.CUT))
        )
        assert len(body) > 5
    # The budget is used up, but for the words that the five cuts would break.
    assert conversation.count(OPEN + "\n".join(lines) + CLOSE) > budget * 0.6


@pytest.mark.parametrize(
    ("costs", "room", "shares"),
    [
        ([10, 200, 200, 200, 10], 200, [10, 60, 60, 60, 10]),
        ([5, 5], 100, [5, 5]),
        ([50, 50, 50], 100, [33, 33, 34]),
        ([1, 40, 100], 61, [1, 30, 30]),
        ([3, 3], 1, [0, 1]),
        ([3], -5, [0]),
        ([], 10, []),
    ],
)
def test_fair_shares(costs: list[int], room: int, shares: list[int]) -> None:
    assert fair_shares(costs, room) == shares


# In a trajectory

SETTINGS = AgentSettings("full", 60, 60_000, 300, 256)
ACCESS = "<mem>m</mem><think>t</think><access>Tolm</access>"


def agent_on(text: str, settings: AgentSettings, kind: str = "bytes") -> Agent:
    conversation = make_conversation(kind)
    prompt = conversation.prompt_ids("Who?")
    trajectory = Trajectory(TASK, 0, 0, len(prompt))
    return Agent(trajectory, prompt, conversation, session(Library(text)), settings, 10**6)


def open_again(agent: Agent, kind: str = "bytes") -> str:
    """One round that opens the page; what it is shown."""
    assert agent.next_request() is not None
    ids = make_conversation(kind).encode(ACCESS)
    agent.receive(ids, [-0.5] * len(ids), "stop")
    assert agent.pending_call is not None
    agent.observe(agent.session.call(*agent.pending_call))
    observation = agent.trajectory.rounds[-1].observation
    assert observation is not None
    return observation.removeprefix(OPEN).removesuffix(CLOSE)


@kinds
def test_a_trajectory_reads_a_page_to_its_end(kind: str) -> None:
    text = page_text(3000)
    agent = agent_on(text, SETTINGS, kind)
    parts: list[str] = []
    while not parts or parts[-1] != tools.PAGE_END:
        parts.append(open_again(agent, kind))
    assert bodies(parts[:-1]) == text
    assert open_again(agent, kind) == parts[0]


def test_in_the_short_form_only_what_it_shows_is_read() -> None:
    """``newest: short``: the model sees 100 characters of each part, its head among them."""
    text = page_text(2000)
    settings = replace(SETTINGS, context="memory", newest="short", max_observation_tokens=900)
    agent = agent_on(text, settings)
    open_again(agent)
    second = open_again(agent)
    assert second.startswith(f"Tolm (part 2): {text[94:200]}")


def test_an_observation_that_does_not_fit_ends_the_trajectory_unread() -> None:
    text = page_text(3000)
    agent = agent_on(text, replace(SETTINGS, max_response_tokens=200))
    open_again(agent)
    assert agent.trajectory.ending == Ending.RESPONSE_BUDGET
    again = agent.session.call("access", "Tolm")
    assert again.page is not None
    assert again.page.start == 0


# Answers that are no text


@pytest.mark.parametrize(
    "half",
    [Passage("Tolm", "half \ud83d"), Passage("half \ud83d", "A town.")],
    ids=["text", "title"],
)
def test_a_lone_surrogate_in_an_answer_is_a_tool_error(half: Passage) -> None:
    tool = session(Library(passages=(half, Passage("Bel", "A hill."))))
    result = tool.call("search", "town")
    assert result.text == tools.SEARCH_UNREADABLE
    assert not result.failed
    assert "search: the retriever's answer is not valid text" in cast(str, result.error)
    assert "ud83d" in cast(str, result.error)
    show(result, make_conversation("bytes"), 200)


def test_a_lone_surrogate_in_a_page_is_a_tool_error() -> None:
    result = session(Library("half \udc00 a page")).call("access", "Tolm")
    assert result == ToolResult(
        tools.ACCESS_UNREADABLE, tools.ACCESS_UNREADABLE, error=cast(str, result.error)
    )
    assert "access: the retriever's answer is not valid text" in cast(str, result.error)
