"""One request to a retrieval server, and what its failures are called.

Whatever is not an answer of the protocol is an error with the address, the setting to look at and
the first characters of what came.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urljoin

import httpx

from mempo.config import RetrieverConfig
from mempo.retrieval import protocols
from mempo.retrieval.base import RetrievalError
from mempo.runtime.errors import ConfigError, MempoError
from mempo.runtime.library_warnings import log_no_requests

T = TypeVar("T")

NO_SUCH_PATH: Final = frozenset({404, 405, 501})

_SHOWN: Final = 200
_HEADERS: Final = {"Content-Type": "application/json"}
_LONGEST_TIMEOUT_S: Final = 1e6  # the operating system counts milliseconds in 32 bits


class ServerError(MempoError, RetrievalError):
    """A server that cannot be used as it is: nobody there, or it speaks something else."""


class TransientError(Exception):
    """A failure after which another try may succeed; ``slow`` when time ran out, ``status`` where
    the server answered."""

    def __init__(self, cause: str, slow: bool = False, status: int | None = None) -> None:
        super().__init__(cause)
        self.slow, self.status = slow, status


class StatusError(ServerError):
    """An answer with a status that another try does not change, or that no try changed."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class WithoutPagesError(ServerError):
    """The server says that it has no pages."""


class ServerConnection:
    """Requests to the server of ``retriever.url``. Thread safe; connections are reused.

    Raises ``ConfigError`` for an address that is none.
    """

    def __init__(self, config: RetrieverConfig) -> None:
        if not config.url:
            raise ConfigError("retriever.url is empty: retriever=http needs one")
        self._config = config
        self.url = config.url.rstrip("/")
        try:
            port = httpx.URL(self.url).port
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"retriever.url={self.url} is no address ({error})") from None
        if port is not None and not 0 < port < 65536:
            raise ConfigError(f"retriever.url={self.url}: a port is a number from 1 to 65535")
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=max(config.workers, 1)
        )
        # No proxy from the environment: the address is given, and clusters set one for downloads.
        self._client = httpx.Client(limits=limits, trust_env=False)
        log_no_requests()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def post(self, path: str, body: dict[str, Any], seconds: float, read: Callable[[Any], T]) -> T:
        """One request; ``read`` makes the result of the answer. ``seconds`` bounds the silence
        before the answer and the whole of it. Raises ``TransientError`` and ``ServerError``."""
        url = self.url + path
        content = json.dumps(body)  # in ASCII, which holds whatever text a model writes
        seconds = min(seconds, _LONGEST_TIMEOUT_S)
        connect = min(self._config.connect_timeout_s, _LONGEST_TIMEOUT_S)
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
        except httpx.ConnectTimeout:
            raise TransientError(
                f"{url}: no connection within retriever.connect_timeout_s="
                f"{self._config.connect_timeout_s:g} seconds",
                slow=True,
            ) from None
        except httpx.TimeoutException:
            raise TransientError(
                f"{url}: no answer within retriever.read_timeout_s="
                f"{self._config.read_timeout_s:g} seconds",
                slow=True,
            ) from None
        except httpx.TransportError as error:
            raise TransientError(f"{url}: {type(error).__name__}: {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # a wrong content encoding, say, or a host name that cannot be written
            raise ServerError(
                f"{url}: {type(error).__name__}: {error}: correct retriever.url"
            ) from None
        _check_status(url, path, response, bytes(raw))
        return self._read(url, bytes(raw), read)

    def _read(self, url: str, raw: bytes, read: Callable[[Any], T]) -> T:
        try:
            return read(json.loads(raw))
        except protocols.NoPagesError as error:
            raise WithoutPagesError(f"{url}: the server says {_shown(raw)}") from error
        except protocols.ShapeError as error:
            problem = str(error)
        except (ValueError, RecursionError):
            problem = "it is not JSON"
        raise ServerError(
            f"{url}: the answer does not fit retriever.protocol={self._config.protocol}: {problem}."
            f" Correct retriever.url or retriever.protocol. It answered {_shown(raw)}"
        )


def _check_status(url: str, path: str, response: httpx.Response, raw: bytes) -> None:
    """Raises for a status that is not 200. A redirect is not followed: it would turn the request
    into one without a body, or send it to a place that nobody chose."""
    status = response.status_code
    if status == 429 or (status >= 500 and status not in NO_SUCH_PATH):
        raise TransientError(f"{url}: status {status}: {_shown(raw)}", status=status)
    target = response.headers.get("location")
    if 300 <= status < 400 and target:
        target = urljoin(url, target)
        base = target.removesuffix(path)
        remedy = f"set retriever.url={base}" if base != target else "correct retriever.url"
        raise StatusError(
            f"{url}: status {status}, a redirect to {target}: {remedy}. It answered {_shown(raw)}",
            status,
        )
    if status != 200:
        raise StatusError(
            f"{url}: status {status}; correct retriever.url, or set retriever.protocol to what "
            f"the server speaks. It answered {_shown(raw)}",
            status,
        )


def _shown(raw: bytes) -> str:
    return repr(raw[:_SHOWN].decode("utf-8", "replace"))
