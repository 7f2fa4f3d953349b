"""Search and access, the tools over the run's passages (specification section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from mempo.agent.inert import make_inert
from mempo.agent.tools.result import PagePart, ToolResult, sentence, unreadable
from mempo.agent.tools.timed import TimeLimit, within
from mempo.config import RetrieverConfig
from mempo.retrieval.base import InMemoryRetriever, Page, RetrievalError, Retriever

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
class _Reading:
    """How far a page was read: to character ``position``, in ``parts`` parts."""

    position: int
    parts: int


class PassageSession:
    """Search and page access of one trajectory, with its reading position in every page.

    Calls of one session come one after another; several sessions may run at once. A page's
    reading position moves by what the model was shown, and only ``mark_read`` moves it.
    ``inert`` takes tags and control marks out of what the retriever gives
    (``Conversation.inert``).

    A retriever's ``RetrievalError`` or time-out becomes an observation; any other exception of a
    retriever is a fault of the program and is raised.
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

    def search(self, query: str, limit: TimeLimit) -> ToolResult:
        """The best passages for ``query``, numbered and titled."""
        if not query:
            return sentence(EMPTY_QUERY, failed=True)
        try:
            passages = self._timed(limit, lambda: self._retriever.search(query, self._config.top_k))
        except TimeoutError as error:
            return sentence(SEARCH_TIMED_OUT, error=_cause("search", error))
        except RetrievalError as error:
            return sentence(SEARCH_FAILED, error=_cause("search", error))
        if not passages:
            return sentence(NOTHING_FOUND, failed=True)
        passages = passages[: self._config.top_k]
        fault = unreadable(*(text for one in passages for text in (one.title, one.text)))
        if fault is not None:
            return sentence(SEARCH_UNREADABLE, error=f"search: the retriever's answer is {fault}")
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

    def access(self, key: str, limit: TimeLimit) -> ToolResult:
        """The next part of the page whose title or URL is ``key``."""
        if not key:
            return sentence(EMPTY_PAGE_NAME, failed=True)
        try:
            title = self._titles.get(key, key)
            page = self._timed(limit, lambda: self._retriever.open_page(title))
        except TimeoutError as error:
            return sentence(ACCESS_TIMED_OUT, error=_cause("access", error))
        except RetrievalError as error:
            return sentence(ACCESS_FAILED, error=_cause("access", error))
        if page is None:
            return sentence(UNKNOWN_PAGE, failed=True)
        fault = unreadable(page.title, page.text)
        if fault is not None:
            return sentence(ACCESS_UNREADABLE, error=f"access: the retriever's answer is {fault}")
        part = self._next_part(page)
        if part is None:
            return sentence(PAGE_END)
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

    def _timed(self, limit: TimeLimit, call: Callable[[], T]) -> T:
        if isinstance(self._retriever, InMemoryRetriever):
            return call()
        return within(limit, call)

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


def _cause(action: str, error: Exception) -> str:
    return f"{action}: {type(error).__name__}: {error}"


class Search:
    """``<search>``: the best passages for a query."""

    def __call__(self, passages: PassageSession, limit: TimeLimit, argument: str) -> ToolResult:
        return passages.search(argument.strip(), limit)


class Access:
    """``<access>``: a page, part by part."""

    def __call__(self, passages: PassageSession, limit: TimeLimit, argument: str) -> ToolResult:
        return passages.access(argument.strip(), limit)


PassageTool = Search | Access
