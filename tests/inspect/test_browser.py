"""The inspector's page in Debian's Chromium: clicked through, and with 2,000 trajectories (around
the method)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mempo.inspect.document import render_page, write_page
from mempo.inspect.reading import read_run
from mempo.inspect.views import Limits
from tests.support.browser import NEEDS_BROWSER, chromium, errors, wait_for
from tests.support.inspected_run import HOSTILE, make_run, round_line, trajectory, write_lines

pytestmark = NEEDS_BROWSER

MANY, ROUNDS = 2000, 8
OPENS_WITHIN_MS = 3000
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
"""Milliseconds from the call of the page to the end of its load event, scripts included."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("small") / "run")
    path = run / "inspector.html"
    write_page(path, render_page(read_run(run), Limits()))
    return path


def long_text(task: int, sample: int, number: int, words: int) -> str:
    """Words that are not alike in any two rounds."""
    return " ".join(f"w{(task * 31 + sample * 17 + number * 7 + i) % 997}" for i in range(words))


def many_trajectories() -> Iterator[dict[str, Any]]:
    """2,000 of 8 rounds: memories of 40 words, observations of 150."""
    for index in range(MANY):
        task, sample = divmod(index, 16)
        rounds = [
            round_line(
                number,
                long_text(task, sample, number, 40),
                observation=long_text(task, sample, number + 100, 150),
                p_full=0.5,
                p_mem=0.25,
                memory_reward=-0.25,
                memory_advantage=float(number - 4),
            )
            for number in range(1, ROUNDS + 1)
        ]
        yield trajectory(f"task-{task:04}", sample, epoch=task // 4, rounds=rounds)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("large")
    write_lines(run / "trajectories.jsonl", list(many_trajectories()))
    write_lines(run / "metrics.jsonl", [{"epoch": e, "reward/mean": 0.5} for e in range(32)])
    path = run / "inspector.html"
    write_page(path, render_page(read_run(run), Limits(trajectories=MANY)))
    return path


def open_page(browser: Any, path: Path, state: str = "") -> None:
    browser.get("about:blank")  # a new address after # alone would not load the page again
    browser.get(f"{path.as_uri()}{state}")


def rows(browser: Any) -> list[str]:
    """The ids of the rows in the document."""
    script = "return [...document.querySelectorAll('#list tbody [role=row]')].map((row) => row.id)"
    return list(browser.execute_script(script))


def press(browser: Any, keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(keys).perform()


def test_clicking_through(browser: Any, small: Path) -> None:
    open_page(browser, small)
    find = browser.find_element
    assert find("css selector", "#overview").is_displayed()
    find("css selector", "[data-view=browse]").click()
    assert not find("css selector", "#overview").is_displayed()
    assert len(rows(browser)) == 4
    find("css selector", "#row-3").click()  # the world's trajectory
    wait_for(browser, "document.querySelectorAll('#detail .round').length === 5")
    assert "Belcott" in find("css selector", "#detail").text
    # Rounds: a button of the table leads to one; the arrow to the next.
    find("css selector", "#detail .chain thead tr th:nth-child(4) button").click()
    assert find("css selector", ".round.current").get_attribute("id") == "round-3"
    press(browser, "\ue014")  # right
    assert find("css selector", ".round.current").get_attribute("id") == "round-4"
    # Side by side, and back by a click on the sample.
    press(browser, "g")
    assert find("css selector", "#group .samples").is_displayed()
    find("css selector", "#group thead button").click()
    assert find("css selector", "#browse").is_displayed()
    # A filter that only the hostile trajectory passes.
    find("css selector", "[name=memoryTo]").send_keys("-0.1")
    wait_for(browser, "document.getElementById('count').textContent === '1 of 4'")
    assert rows(browser) == ["row-2"]
    find("css selector", "#filter [type=reset]").click()
    wait_for(browser, "document.getElementById('count').textContent === '4'")
    find("css selector", "#list thead th:nth-child(4) button").click()  # by reward
    assert rows(browser)[-1] == "row-1"  # never computed
    find("css selector", "#theme").click()
    find("css selector", "#theme").click()
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert errors(browser) == []


def test_html_and_script_are_shown_as_text(browser: Any, small: Path) -> None:
    open_page(browser, small, "#view=browse&at=2%2F3%2Fhostile")
    shown = browser.find_element("css selector", "#detail").text
    assert HOSTILE.split(" \u202e")[0] in shown
    assert browser.find_elements("css selector", "main img, main script") == []
    assert browser.execute_script("return window.alert.toString()").endswith("[native code] }")
    from selenium.common.exceptions import NoAlertPresentException

    with pytest.raises(NoAlertPresentException):
        browser.switch_to.alert.accept()
    assert errors(browser) == []


def test_two_thousand_trajectories_open_within_seconds(browser: Any, large: Path) -> None:
    times = []
    for _ in range(2):
        open_page(browser, large, "#view=browse")
        # The browser writes the time down after its load event, at whose beginning the driver goes
        # on: until then it is 0.
        wait_for(browser, f"{LOADED} > 0")
        times.append(browser.execute_script(f"return {LOADED}"))
        assert browser.execute_script("return document.getElementById('count').textContent") == (
            str(MANY)
        )
    assert min(times) < OPENS_WITHIN_MS, json.dumps(times)
    assert len(rows(browser)) < 100  # only those in sight
    assert errors(browser) == []


SCROLL = """
const done = arguments[arguments.length - 1];
const list = document.getElementById('list');
let pictures = 0, most = 0;
const step = () => {
  pictures += 1;
  most = Math.max(most, document.querySelectorAll('#list tbody [role=row]').length);
  list.scrollTop += 400;
  if (pictures < 61) requestAnimationFrame(step);
  else done(most);
};
list.scrollTop = 0;
requestAnimationFrame(step);
"""


def test_scrolling_draws_only_what_is_in_sight(browser: Any, large: Path) -> None:
    """While the list moves by fourteen rows from picture to picture."""
    open_page(browser, large, "#view=browse")
    assert 0 < browser.execute_async_script(SCROLL) < 100
    first = int(rows(browser)[0].removeprefix("row-"))
    assert first > 500  # 60 times fourteen rows, less what stands above the list's window


def test_keys_move_through_many(browser: Any, large: Path) -> None:
    """A held key: every press is heard, and the chosen trajectory is drawn at the end."""
    open_page(browser, large, "#view=browse&sort=task&down=0")
    press(browser, "j" * 40)
    wait_for(
        browser,
        "document.querySelector('#list [aria-selected=true]') !== null && "
        "document.querySelector('#detail .title').textContent.includes('sample 8')",
    )
    selected = browser.find_element("css selector", "#list [aria-selected=true]")
    assert selected.get_attribute("id") == "row-40"  # task 2, sample 8
    assert errors(browser) == []
