"""The agent's tools: search and access (specification section 3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mempo.agent.inert import make_inert
from mempo.config import RetrieverConfig
from mempo.retrieval.base import InMemoryRetriever, Page, RetrievalError, Retriever
from mempo.trajectory import Task

T = TypeVar("T")

EMPTY_QUERY: Final = "The query is empty. Write what to search for."
NOTHING_FOUND: Final = "Nothing was found for this query."
EMPTY_PAGE_NAME: Final = "The page name is empty. Write a title from the search results."
UNKNOWN_PAGE: Final = "There is no such page. Use a title from the search results."
PAGE_END: Final = "There is no more of this page. Open it again to read it from the start."
SEARCH_FAILED: Final = "The search failed. Try again."
SEARCH_TIMED_OUT: Final = "The search took too long. Try again."
ACCESS_FAILED: Final = "The page could not be opened. Try again."
ACCESS_TIMED_OUT: Final = "Opening the page took too long. Try again."
SEARCH_UNREADABLE: Final = "The search result is not valid text. Try another query."
ACCESS_UNREADABLE: Final = "The page is not valid text. Try another page."


@dataclass(frozen=True)
class PagePart:
    """The rest of a page, or as much of it as one access may offer.

    ``head`` names the page, ``body`` is its text from character ``start`` on, and ``more`` says
    that the page goes on behind it. How much of ``body`` is shown, the token budget decides
    (``mempo/agent/observations.py``).
    """

    key: tuple[str, str]
    head: str
    body: str
    start: int
    more: bool


@dataclass(frozen=True)
class ToolResult:
    """What a tool call gave.

    ``text`` is the observation before it is cut to its token budget and wrapped; ``short_text``
    is what later rounds see of it. ``failed``: the call found nothing, by the model's own fault.
    ``error``: the cause when the retriever failed, else ``None``. ``passages`` (number
    and title, text) and ``page``, of which ``text`` is made, say how one too long is to be cut.
    """

    text: str
    short_text: str
    failed: bool = False
    error: str | None = None
    passages: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    page: PagePart | None = field(default=None, compare=False)


class ToolBox:
    """The tools over named retrievers; ``Task.corpus`` chooses among them. Thread safe.

    ``inert`` takes tags and control marks out of what the retrievers give
    (``Conversation.inert``).
    """

    def __init__(
        self,
        retrievers: Mapping[str, Retriever],
        config: RetrieverConfig,
        inert: Callable[[str], str] = make_inert,
    ) -> None:
        self._retrievers = dict(retrievers)
        self._config = config
        self._inert = inert

    def session(self, task: Task) -> ToolSession:
        """The tools of one trajectory. Raises ``ValueError`` for an unknown ``Task.corpus``."""
        if task.corpus not in self._retrievers:
            known = ", ".join(sorted(self._retrievers)) or "none"
            raise ValueError(
                f'task {task.id} asks for the corpus "{task.corpus}", but there is no retriever '
                f"of that name (there are: {known})"
            )
        return ToolSession(self._retrievers[task.corpus], self._config, self._inert)


@dataclass(frozen=True)
class _Reading:
    """How far a page was read: to character ``position``, in ``parts`` parts."""

    position: int
    parts: int


class ToolSession:
    """The tools of one trajectory, with its reading position in every page.

    Calls of one session come one after another; several sessions may run at once. A page's
    reading position moves by what the model was shown, and only ``mark_read`` moves it.
    """

    def __init__(
        self,
        retriever: Retriever,
        config: RetrieverConfig,
        inert: Callable[[str], str] = make_inert,
    ) -> None:
        self._retriever = retriever
        self._config = config
        self._inert = inert
        self._read: dict[tuple[str, str], _Reading] = {}
        self._titles: dict[str, str] = {}  # titles as search showed them, where tags were in them

    def call(self, action: str, argument: str) -> ToolResult:
        """Runs ``search`` or ``access``. Raises ``ValueError`` for any other action.

        A retriever's ``RetrievalError`` or time-out becomes an observation; any other exception
        of a retriever is a fault of the program and is raised.
        """
        if action == "search":
            return self._search(argument.strip())
        if action == "access":
            return self._access(argument.strip())
        raise ValueError(f'there is no tool "{action}": the tools are search and access')

    def _search(self, query: str) -> ToolResult:
        if not query:
            return _plain(EMPTY_QUERY, failed=True)
        try:
            passages = self._timed(lambda: self._retriever.search(query, self._config.top_k))
        except TimeoutError as error:
            return _plain(SEARCH_TIMED_OUT, error=_cause("search", error))
        except RetrievalError as error:
            return _plain(SEARCH_FAILED, error=_cause("search", error))
        if not passages:
            return _plain(NOTHING_FOUND, failed=True)
        passages = passages[: self._config.top_k]
        fault = _unreadable(*(text for one in passages for text in (one.title, one.text)))
        if fault is not None:
            return _plain(SEARCH_UNREADABLE, error=f"search: {fault}")
        self._titles.update(
            (shown, passage.title)
            for passage in passages
            if (shown := self._inert(passage.title)) != passage.title
        )
        numbered = tuple(
            (
                f"{number}. {self._inert(passage.title)}: ",
                self._inert(passage.text)[: self._config.passage_chars],
            )
            for number, passage in enumerate(passages, start=1)
        )
        text = "\n".join(head + body for head, body in numbered)
        return ToolResult(text, text, passages=numbered)

    def _access(self, key: str) -> ToolResult:
        if not key:
            return _plain(EMPTY_PAGE_NAME, failed=True)
        try:
            title = self._titles.get(key, key)
            page = self._timed(lambda: self._retriever.open_page(title))
        except TimeoutError as error:
            return _plain(ACCESS_TIMED_OUT, error=_cause("access", error))
        except RetrievalError as error:
            return _plain(ACCESS_FAILED, error=_cause("access", error))
        if page is None:
            return _plain(UNKNOWN_PAGE, failed=True)
        fault = _unreadable(page.title, page.text)
        if fault is not None:
            return _plain(ACCESS_UNREADABLE, error=f"access: {fault}")
        part = self._next_part(page)
        if part is None:
            return _plain(PAGE_END)
        text = part.head + part.body
        return ToolResult(text, text[: self._config.short_chars], page=part)

    def mark_read(self, result: ToolResult, characters: int | None = None) -> None:
        """Moves the reading position of the result's page behind the first ``characters`` of its
        body (``None``: behind all of it), which are what the model was shown."""
        if result.page is None:
            return
        page = result.page
        moved = len(page.body) if characters is None else characters
        before = self._read.get(page.key, _Reading(0, 0))
        self._read[page.key] = _Reading(page.start + moved, before.parts + 1)

    def _timed(self, call: Callable[[], T]) -> T:
        if isinstance(self._retriever, InMemoryRetriever):
            return call()
        return _within(self._config.timeout_s, call)

    def _next_part(self, page: Page) -> PagePart | None:
        """At most ``page_chars`` characters from where the shown text ended. ``None`` behind the
        last: the page has no more, and is read from the start again after that."""
        text = self._inert(page.text)
        key = (page.title, page.url)
        reading = self._read.get(key)
        start = 0 if reading is None else reading.position
        if reading is not None and start >= len(text):
            del self._read[key]
            return None
        title = self._inert(page.title)
        if reading is not None and start > 0:
            title = f"{title} (part {reading.parts + 1})"
        end = start + self._config.page_chars
        return PagePart(key, f"{title}: ", text[start:end], start, end < len(text))


def _plain(text: str, failed: bool = False, error: str | None = None) -> ToolResult:
    return ToolResult(text, text, failed, error)


def _unreadable(*texts: str) -> str | None:
    """What is wrong with texts that no tokenizer can read, or ``None``."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        return f"the retriever's answer is not valid text ({error})"
    return None


def _cause(action: str, error: Exception) -> str:
    return f"{action}: {type(error).__name__}: {error}"


def _within(seconds: float, call: Callable[[], T]) -> T:
    """The call's result, its exception, or ``TimeoutError`` after ``seconds``.

    The call runs on a thread of its own that does not keep the program alive: Python cannot
    interrupt a retriever that hangs.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="mempo-tool", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no result within retriever.timeout_s={seconds:g} seconds")
    return results[0]
