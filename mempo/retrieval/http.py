"""A client of retrieval servers that speak Search-R1's or ASearcher's protocol.

Whatever is not an answer of the protocol is an error; nothing becomes an empty result.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import tenacity

from mempo.config import RetrieverConfig
from mempo.retrieval import protocols
from mempo.retrieval.base import Page, Passage, page_names
from mempo.retrieval.server_connection import (
    NO_SUCH_PATH,
    ServerConnection,
    ServerError,
    StatusError,
    TransientError,
    WithoutPagesError,
)
from mempo.runtime.program import command

__all__ = ["HttpRetriever", "ServerError"]

T = TypeVar("T")

TITLE_SEARCH: Final = 20
"""Passages asked for when a page is looked for by its title."""

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_S: Final = 8.0
_READY_PAUSE_S: Final = 0.5
_REFUSED: Final = 500
"""What servers of both protocols answer to requests of the other, as if they were broken."""
_PAGES_FAIL: Final = frozenset({500, 503})
"""What ``/access`` answers in servers that were started without their file of pages."""


class HttpRetriever:
    """Search and page access on a server. Thread safe; connections are reused.

    A request is tried ``retries`` times again, with growing pauses, after a time-out, a lost
    connection or a status of 429 or 5xx; all tries together end within ``timeout_s``. Raises
    ``TimeoutError`` when the time ran out and ``ServerError`` (a ``RetrievalError``) for any other
    failure, with the address and the setting.

    Pages: the key goes to ``/access``. Where that knows none, or the server has no pages (as
    Search-R1's own), passages with this title are searched for: a found URL is opened, else the
    passages themselves are the page. Blank results among others are left out; ``blank_results``
    counts them, and the first is told.

    Args:
        config: ``url``, ``protocol``, times in seconds and ``retries``; ``workers`` connections
            are kept open.
    """

    def __init__(self, config: RetrieverConfig) -> None:
        self._config = config
        self._server = ServerConnection(config)
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._has_pages = False
        self.blank_results = 0

    def wait_until_ready(self, say: Callable[[str], None] | None = None) -> None:
        """Waits for the server's first answer to a search, at most ``ready_timeout_s``.

        ``say`` hears once that it is waited for. Raises ``ServerError`` at once for an answer that
        no waiting mends, such as another protocol's.
        """
        end = time.monotonic() + self._config.ready_timeout_s
        told = False
        while True:
            left = min(max(end - time.monotonic(), 0.1), self._config.read_timeout_s)
            try:
                self._retrieve_once(["ready"], 1, left)
                return
            except TransientError as error:
                if error.status == _REFUSED:
                    self._refuse_other_protocol(left)
                if time.monotonic() + _READY_PAUSE_S >= end:
                    raise ServerError(
                        f"{self._server.url} was not ready within retriever.ready_timeout_s="
                        f"{self._config.ready_timeout_s:g} seconds ({error}): start the server "
                        f"({command('serve', 'mempo.retrieval.serve')}), or correct retriever.url"
                    ) from None
                if say is not None and not told:
                    say(f"waiting for the retrieval server at {self._server.url} ({error})")
                    told = True
                time.sleep(_READY_PAUSE_S)

    def search(self, query: str, top_k: int) -> list[Passage]:
        """The at most ``top_k`` passages that the server names, in its order."""
        return self.search_many([query], top_k)[0]

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """One list of passages for each query, with one request."""
        if not queries:
            return []
        found, blank = self._persistently(
            lambda seconds: self._retrieve_once(queries, top_k, seconds)
        )
        if blank:
            with self._lock:
                self.blank_results += blank
            self._tell_once(
                "blank",
                f"{self._server.url} gave a blank result for {queries[0]!r}: it is left out, and "
                "so are others",
            )
        return [passages[:top_k] for passages in found]

    def open_page(self, key: str) -> Page | None:
        """The page with this title or URL, or ``None`` when the server knows none."""
        page, failure = self._access_or_failure(key)
        if page is not None:
            return page
        found = self._page_of_passages(key, failure) if "://" not in key else None
        if found is None and failure is not None and _may_have_pages(failure):
            raise failure
        return found

    def close(self) -> None:
        """Closes the connections."""
        self._server.close()

    def _access_or_failure(self, key: str) -> tuple[Page | None, ServerError | None]:
        """What ``/access`` knows, and how it failed where the server seems to have no pages."""
        try:
            page = self._persistently(lambda seconds: self._access_once(key, seconds))
        except (StatusError, WithoutPagesError) as error:
            if self._has_pages or not _seems_without_pages(error):
                raise
            if self._config.protocol == "asearcher" or _may_have_pages(error):
                self._tell_once(
                    "pages",
                    f"{self._server.url} seems to have no pages ({error}): the passages that are "
                    "found by a title are its page",
                )
            return None, error
        self._has_pages = True
        return page, None

    def _page_of_passages(self, key: str, failure: ServerError | None) -> Page | None:
        """The page whose title is ``key``, from the passages that a search for it finds."""
        names = {name.casefold() for name in page_names(key)}
        try:
            alike = [one for one in self.search(key, TITLE_SEARCH) if one.title.casefold() in names]
        except ServerError as error:
            if failure is None:
                raise
            raise ServerError(f"{failure}; nor can its title be searched for: {error}") from None
        if not alike:
            return None
        urls = dict.fromkeys(passage.url for passage in alike if passage.url)
        for url in urls if failure is None else ():
            page, failed = self._access_or_failure(url)
            if page is not None:
                return replace(page, title=alike[0].title) if page.title == url else page
            if failed is not None:
                break
        return Page(alike[0].title, "\n".join(one.text for one in alike), alike[0].url)

    def _refuse_other_protocol(self, seconds: float) -> None:
        """Raises ``ServerError`` when the server, which refused a request of ours, answers one of
        the other protocol."""
        own = self._config.protocol
        other = protocols.OTHER[own]
        try:
            self._retrieve_once(["ready"], 1, seconds, other)
        except (TransientError, ServerError):
            return
        try:
            self._retrieve_once(["ready"], 1, seconds)  # it may have become ready in between
        except (TransientError, ServerError):
            raise ServerError(
                f"{self._server.url}/retrieve: status {_REFUSED} for retriever.protocol={own}, but "
                f"results for the other protocol; set retriever.protocol={other}"
            ) from None

    def _retrieve_once(
        self,
        queries: Sequence[str],
        top_k: int,
        seconds: float,
        protocol: protocols.Protocol | None = None,
    ) -> tuple[list[list[Passage]], int]:
        protocol = protocol or self._config.protocol
        return self._server.post(
            "/retrieve",
            protocols.retrieve_request(queries, top_k, protocol),
            seconds,
            lambda answer: protocols.read_passages(answer, len(queries), protocol),
        )

    def _access_once(self, key: str, seconds: float) -> Page | None:
        return self._server.post(
            "/access",
            protocols.access_request([key]),
            seconds,
            lambda answer: protocols.read_pages(answer, [key])[0],
        )

    def _persistently(self, attempt: Callable[[float], T]) -> T:
        """``attempt`` with retries; it is told how many seconds it may take."""
        config = self._config
        end = time.monotonic() + config.timeout_s
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientError),
            stop=tenacity.stop_after_attempt(config.retries + 1)
            | tenacity.stop_before_delay(config.timeout_s),
            wait=tenacity.wait_exponential(config.backoff_s, max=_LONGEST_WAIT_S)
            + tenacity.wait_random(0, min(config.backoff_s, _LONGEST_WAIT_S)),
            reraise=True,
        )
        try:
            return retrying(
                lambda: attempt(min(config.read_timeout_s, max(end - time.monotonic(), 0.01)))
            )
        except TransientError as error:
            tries = retrying.statistics["attempt_number"]
            if error.slow:
                raise TimeoutError(
                    f"{error}, tried {tries} times (retriever.retries={config.retries}, "
                    f"retriever.timeout_s={config.timeout_s:g}): repair the server, or raise these"
                ) from None
            message = (
                f"{error}, tried {tries} times (retriever.retries={config.retries}): repair the "
                "server, or correct retriever.url"
            )
            if error.status is not None:
                raise StatusError(message, error.status) from None
            raise ServerError(message) from None

    def _tell_once(self, kind: str, message: str) -> None:
        """Logs the first message of a ``kind``."""
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        _LOG.warning("%s", message)


def _seems_without_pages(error: StatusError | WithoutPagesError) -> bool:
    return isinstance(error, WithoutPagesError) or error.status in NO_SUCH_PATH | _PAGES_FAIL


def _may_have_pages(error: ServerError) -> bool:
    """Whether the server failed in a way that one with pages fails, too."""
    return isinstance(error, StatusError) and error.status in _PAGES_FAIL
