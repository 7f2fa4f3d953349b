"""A client of retrieval servers that speak Search-R1's or ASearcher's protocol.

Whatever is not an answer of the protocol is an error with the address, the setting to look at and
the first characters of what came; nothing becomes an empty result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import httpx
import tenacity

from mempo.config import RetrieverConfig
from mempo.retrieval import protocols
from mempo.retrieval.base import Page, Passage, RetrievalError, page_names
from mempo.runtime.errors import MempoError
from mempo.runtime.program import command

T = TypeVar("T")

TITLE_SEARCH: Final = 20
"""Passages asked for when a page is looked for by its title."""

_SHOWN: Final = 200
_HEADERS: Final = {"Content-Type": "application/json"}
_LONGEST_WAIT_S: Final = 8.0
_READY_PAUSE_S: Final = 0.5
_NO_SUCH_PATH: Final = frozenset({404, 405, 501})


class ServerError(MempoError, RetrievalError):
    """A server that cannot be used as it is: nobody there, or it speaks something else."""


class _TransientError(Exception):
    """A failure after which another try may succeed; ``slow`` when time ran out."""

    def __init__(self, cause: str, slow: bool = False) -> None:
        super().__init__(cause)
        self.slow = slow


class _StatusError(ServerError):
    """An answer with a status that another try does not change."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HttpRetriever:
    """Search and page access on a server. Thread safe; connections are reused.

    A request is tried ``retries`` times again, with growing pauses, after a time-out, a lost
    connection or a status of 429 or 5xx; all tries together end within ``timeout_s``. Raises
    ``TimeoutError`` when the time ran out and ``ServerError`` (a ``RetrievalError``) for any other
    failure, with the address and the setting.

    Pages: the key goes to ``/access``. Where that knows none, or the server has no ``/access`` (as
    Search-R1's own), passages with this title are searched for: a found URL is opened, else the
    passages themselves are the page.

    Args:
        config: ``url``, ``protocol``, times in seconds and ``retries``; ``workers`` connections
            are kept open.
    """

    def __init__(self, config: RetrieverConfig) -> None:
        if not config.url:
            raise ValueError("HttpRetriever needs retriever.url")
        self._config = config
        self._url = config.url.rstrip("/")
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=max(config.workers, 1)
        )
        # No proxy from the environment: the address is given, and clusters set one for downloads.
        self._client = httpx.Client(limits=limits, trust_env=False)

    def wait_until_ready(self, say: Callable[[str], None] | None = None) -> None:
        """Waits for the server's first answer to a search, at most ``ready_timeout_s``.

        ``say`` hears once that it is waited for. Raises ``ServerError`` at once for an answer that
        no waiting mends, such as another protocol's.
        """
        end = time.monotonic() + self._config.ready_timeout_s
        told = False
        while True:
            try:
                left = max(end - time.monotonic(), 0.1)
                self._retrieve_once(["ready"], 1, min(left, self._config.read_timeout_s))
                return
            except _TransientError as error:
                if time.monotonic() + _READY_PAUSE_S >= end:
                    raise ServerError(
                        f"{self._url} was not ready within retriever.ready_timeout_s="
                        f"{self._config.ready_timeout_s:g} seconds ({error}): start the server "
                        f"({command('serve', 'mempo.retrieval.serve')}), or correct retriever.url"
                    ) from None
                if say is not None and not told:
                    say(f"waiting for the retrieval server at {self._url} ({error})")
                    told = True
                time.sleep(_READY_PAUSE_S)

    def search(self, query: str, top_k: int) -> list[Passage]:
        """The at most ``top_k`` passages that the server names, in its order."""
        return self.search_many([query], top_k)[0]

    def search_many(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """One list of passages for each query, with one request."""
        if not queries:
            return []
        found = self._persistently(lambda seconds: self._retrieve_once(queries, top_k, seconds))
        return [passages[:top_k] for passages in found]

    def open_page(self, key: str) -> Page | None:
        """The page with this title or URL, or ``None`` when the server knows none."""
        page = self._access(key)
        if page is not None or "://" in key:
            return page
        names = {name.casefold() for name in page_names(key)}
        alike = [one for one in self.search(key, TITLE_SEARCH) if one.title.casefold() in names]
        if not alike:
            return None
        for url in dict.fromkeys(passage.url for passage in alike if passage.url):
            page = self._access(url)
            if page is not None:
                return replace(page, title=alike[0].title) if page.title == url else page
        return Page(alike[0].title, "\n".join(one.text for one in alike), alike[0].url)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _access(self, key: str) -> Page | None:
        try:
            return self._persistently(lambda seconds: self._access_once(key, seconds))
        except _StatusError as error:
            if error.status in _NO_SUCH_PATH and self._config.protocol == "search_r1":
                return None  # Search-R1's server has no pages
            raise

    def _retrieve_once(
        self, queries: Sequence[str], top_k: int, seconds: float
    ) -> list[list[Passage]]:
        body = protocols.retrieve_request(queries, top_k, self._config.protocol)
        return self._post(
            "/retrieve",
            body,
            seconds,
            lambda answer: protocols.read_passages(answer, len(queries), self._config.protocol),
        )

    def _access_once(self, key: str, seconds: float) -> Page | None:
        return self._post(
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
            retry=tenacity.retry_if_exception_type(_TransientError),
            stop=tenacity.stop_after_attempt(config.retries + 1)
            | tenacity.stop_before_delay(config.timeout_s),
            wait=tenacity.wait_exponential(config.backoff_s, max=_LONGEST_WAIT_S)
            + tenacity.wait_random(0, config.backoff_s),
            reraise=True,
        )
        try:
            return retrying(
                lambda: attempt(min(config.read_timeout_s, max(end - time.monotonic(), 0.01)))
            )
        except _TransientError as error:
            tries = retrying.statistics["attempt_number"]
            if error.slow:
                raise TimeoutError(
                    f"{error}, tried {tries} times (retriever.retries={config.retries}, "
                    f"retriever.timeout_s={config.timeout_s:g}): repair the server, or raise these"
                ) from None
            raise ServerError(
                f"{error}, tried {tries} times (retriever.retries={config.retries}): repair the "
                "server, or correct retriever.url"
            ) from None

    def _post(self, path: str, body: dict[str, Any], seconds: float, read: Callable[[Any], T]) -> T:
        """One request. ``seconds`` bounds the silence before the answer and the whole of it."""
        url = self._url + path
        content = json.dumps(body)  # in ASCII, which holds whatever text a model writes
        connect = self._config.connect_timeout_s
        timeout = httpx.Timeout(seconds, connect=min(connect, seconds))
        end = time.monotonic() + seconds + connect
        try:
            with self._client.stream(
                "POST", url, content=content, headers=_HEADERS, timeout=timeout
            ) as response:
                raw = bytearray()
                for block in response.iter_bytes():
                    raw += block
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("the answer did not end")
                status = response.status_code
        except httpx.ConnectTimeout:
            raise _TransientError(
                f"{url}: no connection within retriever.connect_timeout_s={connect:g} seconds",
                slow=True,
            ) from None
        except httpx.TimeoutException:
            raise _TransientError(
                f"{url}: no answer within retriever.read_timeout_s="
                f"{self._config.read_timeout_s:g} seconds",
                slow=True,
            ) from None
        except httpx.TransportError as error:
            raise _TransientError(f"{url}: {type(error).__name__}: {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # a wrong content encoding, say
            raise ServerError(f"{url}: {type(error).__name__}: {error}") from None
        return self._read(url, status, bytes(raw), read)

    def _read(self, url: str, status: int, raw: bytes, read: Callable[[Any], T]) -> T:
        came = raw[:_SHOWN].decode("utf-8", "replace")
        if status == 429 or (status >= 500 and status not in _NO_SUCH_PATH):
            raise _TransientError(f"{url}: status {status}: {came!r}")
        if status != 200:
            raise _StatusError(
                f"{url}: status {status}; correct retriever.url, or set retriever.protocol to what "
                f"the server speaks. It answered {came!r}",
                status,
            )
        try:
            return read(json.loads(raw))
        except protocols.ShapeError as error:
            problem = str(error)
        except (ValueError, RecursionError):
            problem = "it is not JSON"
        raise ServerError(
            f"{url}: the answer does not fit retriever.protocol={self._config.protocol}: {problem}."
            f" Correct retriever.url or retriever.protocol. It answered {came!r}"
        )
