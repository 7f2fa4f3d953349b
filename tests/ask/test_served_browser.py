"""The page of a served agent in Debian's Chromium (around the method)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mempo.ask.loading import load_agent
from mempo.retrieval import RankBm25Retriever
from mempo.retrieval.base import Passage, RetrievalError
from tests.support.asked import MARKUP, QUESTION, Starts, by_question, make_run
from tests.support.browser import NEEDS_BROWSER, chromium, errors, wait_for
from tests.support.served import served

pytestmark = NEEDS_BROWSER

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("asked") / "run")


@contextmanager
def page(browser: Any, run: Path, **options: Any) -> Iterator[str]:
    overrides = [f"data.corpus={run}/passages.jsonl", "evaluation.max_round_tokens=400"]
    with (
        load_agent(run, overrides=overrides, start=Starts(by_question)) as agent,
        served(agent, **options) as address,
    ):
        browser.get(f"{address}/")
        yield address
        browser.get("about:blank")


def ask(browser: Any, *questions: str) -> None:
    field = browser.find_element("css selector", "#question")
    for question in questions:
        field.send_keys(f"{question}\n")


def ended(browser: Any, number: int) -> list[str]:
    """The texts of all cards once ``number`` have ended, the oldest first."""
    wait_for(browser, f"document.querySelectorAll('.card .ending').length === {number}")
    script = "return [...document.querySelectorAll('.card')].map((card) => card.innerText)"
    return list(browser.execute_script(script))[::-1]


def marked(browser: Any, tag: str) -> list[str]:
    script = f"return [...document.querySelectorAll('.memory {tag}')].map((one) => one.innerText)"
    return list(browser.execute_script(script))


def test_a_memory_is_watched_from_round_to_round(browser: Any, run: Path) -> None:
    with page(browser, run, example=QUESTION):
        wait_for(browser, "document.getElementById('name').textContent === 'run'")
        ask(browser, "After 3 searches?")
        (card,) = ended(browser, 1)
        lines = [line for line in card.splitlines() if line]
        assert lines[0].endswith("After 3 searches?")
        assert [line for line in lines if line.startswith("Round")] == [
            f"Round {number}" for number in (1, 2, 3, 4)
        ]
        assert (marked(browser, "ins"), marked(browser, "del")) == (["2", "3"], ["1", "2"])
        assert lines[-3:-1] == ["ANSWER", "3 done"]
        assert lines[-1].startswith("4 rounds, 3 tool calls, ")
        # An example is put into the field, and the button asks it.
        browser.find_element("css selector", "#example").click()
        browser.find_element("css selector", "#submit").click()
        assert "Anna Bel" in ended(browser, 2)[1]
    assert errors(browser) == []


def test_several_questions_at_a_time_and_one_given_up(
    browser: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    search = RankBm25Retriever.search

    def slow(self: RankBm25Retriever, query: str, top_k: int) -> list[Passage]:
        assert release.wait(60)
        return search(self, query, top_k)

    monkeypatch.setattr(RankBm25Retriever, "search", slow)
    with page(browser, run):
        wait_for(browser, "!document.getElementById('ask').hidden")
        ask(browser, *(f"After {number} searches?" for number in (1, 2, 3, 1, 2, 3, 0)))
        going = "document.getElementById('going').textContent"
        wait_for(browser, f"{going} === '7 questions on the way'")
        stops = browser.find_elements("css selector", ".card .stop")
        stops[0].click()  # the newest, which waits
        stops[-1].click()  # the oldest, whose tool is at work
        wait_for(browser, f"{going} === '5 questions on the way'")
        release.set()
        cards = ended(browser, 7)
        wait_for(browser, f"{going} === ''")
        for card, end in zip(cards, ("stopped", 2, 3, 1, 2, 3, "stopped"), strict=True):
            assert card.rstrip().endswith("stopped") == (end == "stopped")
            assert (f"{end} done" in card) == (end != "stopped")
    assert errors(browser) == []


def test_texts_of_models_and_tools_are_shown_as_text(browser: Any, run: Path) -> None:
    with page(browser, run):
        wait_for(browser, "!document.getElementById('ask').hidden")
        ask(browser, f"write markup {MARKUP[:-1]}")
        (card,) = ended(browser, 1)
        assert "ANSWER" in card
        assert card.count("<b id=mark>bold</b>") == 5  # question, thought, memory, answer twice
        assert "U+202E" in card
        assert browser.find_elements("css selector", "#mark, main img") == []
    assert errors(browser) == []


def test_what_fails_is_told_and_the_next_question_is_answered(
    browser: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(self: RankBm25Retriever, query: str, top_k: int) -> list[Passage]:
        raise RetrievalError("the index is gone") if query == "bug" else ZeroDivisionError("bug")

    with page(browser, run):
        wait_for(browser, "!document.getElementById('ask').hidden")
        ask(browser, "break the engine")
        assert "the engine failed: RuntimeError: the engine broke" in ended(browser, 1)[0]
        with monkeypatch.context() as broken:
            broken.setattr(RankBm25Retriever, "search", down)
            ask(browser, "use the bug")
            card = ended(browser, 2)[1]
        failed = browser.find_elements("css selector", ".observation.failed")
        assert [one.text for one in failed] == ["The search failed. Try again."]
        assert "1 of 1 tool calls failed for a reason that is not the model's own" in card
        ask(browser, QUESTION)
        assert ended(browser, 3)[2].count("Anna Bel") >= 2
        ask(browser, "say nothing")
        assert "neither searches, opens a page nor answers" in ended(browser, 4)[3]
    assert errors(browser) == []


def test_the_page_asks_for_the_token(browser: Any, run: Path) -> None:
    with page(browser, run, token=TOKEN, own_names=False):
        wait_for(browser, "!document.getElementById('token-form').hidden")
        field = browser.find_element("css selector", "#token")
        field.send_keys("wrong\n")
        wait_for(
            browser,
            "document.getElementById('token-told').textContent === 'That is not its token.'",
        )
        assert not browser.find_element("css selector", "#ask").is_displayed()
        field.send_keys(f"{TOKEN}\n")
        wait_for(browser, "!document.getElementById('ask').hidden")
        ask(browser, QUESTION)
        assert "Anna Bel" in ended(browser, 1)[0]
        assert TOKEN not in browser.page_source
        assert "token" not in browser.current_url
    assert all("401" in one for one in errors(browser))


def test_a_server_that_is_gone_is_told(browser: Any, run: Path) -> None:
    passages = f"data.corpus={run}/passages.jsonl"
    with load_agent(run, overrides=[passages], start=Starts(by_question)) as agent:
        with served(agent) as address:
            browser.get(f"{address}/")
            wait_for(browser, "!document.getElementById('ask').hidden")
        ask(browser, QUESTION)
        assert "the server cannot be reached" in ended(browser, 1)[0]
