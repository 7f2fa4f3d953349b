"""The agent's tools: search and access (specification section 3)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from mempo.config import RetrieverConfig
from mempo.retrieval.base import InMemoryRetriever, Page, RetrievalError, Retriever
from mempo.runtime.errors import MempoError
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

_TAG: Final = re.compile(
    r"<\s*(/?)\s*(mem|think|search|access|answer|information"
    r"|tool_call|tool_response|start_of_turn|end_of_turn|bos|eos|pad|unk|s)\s*(/?)\s*>",
    re.IGNORECASE,
)
_MARK: Final = re.compile(r"<\s*[|\uff5c]\s*([^<>|\uff5c]*?)\s*[|\uff5c]\s*>")
_EARLY_CHECK: Final = 32


class ToolFailureError(MempoError):
    """Too many tool calls failed for a reason that is not the model's own."""


@dataclass(frozen=True)
class ToolResult:
    """What a tool call gave.

    ``text`` is the observation before it is cut to its token budget and wrapped; ``short_text``
    is what later rounds see of it. ``failed``: the call found nothing, by the model's own fault.
    ``error``: the cause when the retriever failed, else ``None``.
    """

    text: str
    short_text: str
    failed: bool = False
    error: str | None = None


class ToolBox:
    """The tools over named retrievers; ``Task.corpus`` chooses among them. Thread safe."""

    def __init__(self, retrievers: Mapping[str, Retriever], config: RetrieverConfig) -> None:
        self._retrievers = dict(retrievers)
        self._config = config

    def session(self, task: Task) -> ToolSession:
        """The tools of one trajectory. Raises ``ValueError`` for an unknown ``Task.corpus``."""
        if task.corpus not in self._retrievers:
            known = ", ".join(sorted(self._retrievers)) or "none"
            raise ValueError(
                f'task {task.id} asks for the corpus "{task.corpus}", but there is no retriever '
                f"of that name (there are: {known})"
            )
        return ToolSession(self._retrievers[task.corpus], self._config)


class ToolSession:
    """The tools of one trajectory, with its reading position in every page.

    Calls of one session come one after another; several sessions may run at once.
    """

    def __init__(self, retriever: Retriever, config: RetrieverConfig) -> None:
        self._retriever = retriever
        self._config = config
        self._parts_read: dict[tuple[str, str], int] = {}
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
        self._titles.update(
            (shown, passage.title)
            for passage in passages
            if (shown := make_inert(passage.title)) != passage.title
        )
        return _plain(
            "\n".join(
                f"{number}. {make_inert(passage.title)}: "
                f"{make_inert(passage.text)[: self._config.passage_chars]}"
                for number, passage in enumerate(passages[: self._config.top_k], start=1)
            )
        )

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
        text = self._next_part(page)
        return ToolResult(text, text[: self._config.short_chars])

    def _timed(self, call: Callable[[], T]) -> T:
        if isinstance(self._retriever, InMemoryRetriever):
            return call()
        return _within(self._config.timeout_s, call)

    def _next_part(self, page: Page) -> str:
        """The next ``page_chars`` characters; after the last, a sentence, then from the start."""
        size = self._config.page_chars
        text = make_inert(page.text)
        parts = max(1, -(-len(text) // size))
        key = (page.title, page.url)
        part = self._parts_read.get(key, 0)
        if part == parts:
            self._parts_read[key] = 0
            return PAGE_END
        self._parts_read[key] = part + 1
        title = make_inert(page.title)
        if parts > 1:
            title = f"{title} (part {part + 1} of {parts})"
        return f"{title}: {text[part * size : (part + 1) * size]}"


class ErrorRate:
    """Counts one epoch's tool calls and stops the run when too many fail. Thread safe.

    Only failures that are not the model's own count (``ToolResult.error``).
    """

    def __init__(self, max_rate: float) -> None:
        self._max_rate = max_rate
        self._lock = threading.Lock()
        self.calls = 0
        self.errors = 0
        self._last_error = ""

    def record(self, result: ToolResult) -> None:
        """Counts one call. Raises ``ToolFailureError`` early, from the 32nd call on."""
        with self._lock:
            self.calls += 1
            if result.error is not None:
                self.errors += 1
                self._last_error = result.error
            enough = self.calls >= _EARLY_CHECK
        if enough:
            self.check()

    def check(self) -> None:
        """For the end of an epoch. Raises ``ToolFailureError`` above ``max_rate``."""
        with self._lock:
            if self.errors > self._max_rate * self.calls:
                raise ToolFailureError(
                    f"{self.errors} of {self.calls} tool calls of this epoch failed for a reason "
                    "that is not the model's own, more than "
                    f"retriever.max_tool_error_rate={self._max_rate:g} allows. Last cause: "
                    f"{self._last_error}. Repair the retriever, or raise the rate"
                )


def make_inert(text: str) -> str:
    """Turns protocol tags and chat-template marks inside tool text into readable words.

    ``<answer>`` becomes ``(answer)`` and ``<|im_end|>`` becomes ``(im_end)``, in any case and
    with white space inside; all other text stays as it is.
    """
    return _MARK.sub(r"(\1)", _TAG.sub(r"(\1\2\3)", text))


def _plain(text: str, failed: bool = False, error: str | None = None) -> ToolResult:
    return ToolResult(text, text, failed, error)


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
