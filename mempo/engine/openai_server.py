"""Requests to a server that speaks OpenAI's protocol, with its failures as sentences.

The key comes from the environment and is taken out of whatever a server says of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import tenacity

from mempo.config import EngineConfig
from mempo.config.server_key import key_from_environment
from mempo.engine.errors import EngineError
from mempo.runtime.library_warnings import log_no_requests

T = TypeVar("T")

_NO_KEY: Final = "none"
"""What is sent where no key is set: servers of one's own ask for none, the client does."""

_NO_SUCH_PATH: Final = frozenset({404, 405, 501})
_LONGEST_WAIT_S: Final = 60.0
_READY_PAUSE_S: Final = 0.5
_SHOWN: Final = 300


@dataclass(frozen=True)
class ServedModel:
    """A model that the server lists; ``max_model_len`` ``None`` where it does not say."""

    name: str
    max_model_len: int | None


class RefusedError(EngineError):
    """An answer with a status that is no success; ``code`` is the server's word for why."""

    def __init__(self, message: str, status: int, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class OpenAIServer:
    """The server at ``engine.url``. Its coroutines belong to one event loop.

    A request is tried ``retries`` times again, with growing pauses (or as long as the server asks
    for), after a time-out, a lost connection or a status of 408, 429 or 5xx; all tries together end
    within ``timeout_s``. What fails for good raises ``EngineError`` with the address and the
    setting to look at.
    """

    def __init__(self, config: EngineConfig) -> None:
        import openai

        assert config.url is not None
        self.url = config.url.rstrip("/")
        self._config = config
        self._key = key_from_environment(config.api_key_env, "engine.api_key_env") or _NO_KEY
        log_no_requests()
        timeout = openai.Timeout(config.read_timeout_s, connect=config.connect_timeout_s)
        self._client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.url,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(
                timeout=timeout,
                # A proxy for the way out; http is the local network's, as of retrieval servers.
                trust_env=self.url.startswith("https"),
            ),
            timeout=timeout,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def wait_until_ready(self, say: Callable[[str], None]) -> list[ServedModel]:
        """The models that the server lists, none where it has no list, once it answers: at most
        after ``ready_timeout_s``. ``say`` hears once that it is waited for."""
        import openai

        end, told = time.monotonic() + self._config.ready_timeout_s, False
        while True:
            left = min(max(end - time.monotonic(), 0.1), self._config.read_timeout_s)
            try:
                return _listed(await self._client.with_options(timeout=left).models.list())
            except openai.APIStatusError as error:
                if error.status_code in _NO_SUCH_PATH:
                    return []
                if not _may_pass(error):
                    raise self._failure(error) from None
                cause = str(error.status_code)
            except openai.APIConnectionError as error:
                cause = str(error.__cause__ or error)
            if time.monotonic() + _READY_PAUSE_S >= end:
                raise EngineError(
                    f"{self.url} was not ready within engine.ready_timeout_s="
                    f"{self._config.ready_timeout_s:g} seconds ({self._without_key(cause)}): start "
                    "the server, or correct engine.url"
                )
            if not told:
                say(f"waiting for the server at {self.url} ({self._without_key(cause)})")
                told = True
            await asyncio.sleep(_READY_PAUSE_S)

    async def completion(self, **body: Any) -> Any:
        """The first choice of ``/completions``."""
        return await self._choice(lambda: self._client.completions.create(**body))

    async def chat(self, **body: Any) -> tuple[str, str | None]:
        """The text of ``/chat/completions``' first choice, and why it ended."""
        choice = await self._choice(lambda: self._client.chat.completions.create(**body))
        message = getattr(choice, "message", None)
        text = getattr(message, "content", None)
        if message is None or not isinstance(text, str | None):
            raise self._foreign(choice)
        return text or "", getattr(choice, "finish_reason", None)

    async def _choice(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        answer = await self._persistently(ask)
        choices = getattr(answer, "choices", None)
        if not choices:
            raise self._foreign(answer)
        return choices[0]

    def _foreign(self, answer: Any) -> EngineError:
        shown = self._without_key(str(answer))[:_SHOWN]
        return EngineError(
            f"{self.url}: the answer is none of OpenAI's protocol: correct engine.url, which "
            f"mostly ends with /v1. It answered {shown!r}"
        )

    async def _persistently(self, ask: Callable[[], Awaitable[T]]) -> T:
        import openai

        async def once() -> T:  # tenacity awaits what is declared to be awaited
            return await ask()

        config = self._config
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(config.retries + 1),
            wait=self._pause,
            reraise=True,
        )
        try:
            async with asyncio.timeout(config.timeout_s):
                return await retrying(once)
        except TimeoutError:
            raise EngineError(
                f"{self.url}: no answer within engine.timeout_s={config.timeout_s:g} seconds: "
                "repair the server, ask it less at a time (engine.max_num_seqs), or raise this"
            ) from None
        except openai.OpenAIError as error:
            raise self._failure(error) from None

    def _pause(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = _retry_after(error)
        own = tenacity.wait_random_exponential(self._config.backoff_s, max=_LONGEST_WAIT_S)(state)
        return min(asked, _LONGEST_WAIT_S) if asked is not None else own

    def _failure(self, error: Exception) -> EngineError:
        """The sentence for what no further try would mend, or none mended."""
        import openai

        config = self._config
        tried = f", tried {config.retries + 1} times (engine.retries)" if _may_pass(error) else ""
        if isinstance(error, openai.APITimeoutError):
            said = f"no answer within engine.read_timeout_s={config.read_timeout_s:g} seconds"
            return EngineError(f"{self.url}: {said}{tried}: repair the server, or raise these")
        if not isinstance(error, openai.APIStatusError):
            said = self._without_key(str(error.__cause__ or error))
            return EngineError(
                f"{self.url}: {said}{tried}: start the server, or correct engine.url"
            )
        status = error.status_code
        shown = self._without_key(error.message)[:_SHOWN]
        told = f"{self.url}: status {status}{tried}: {shown}. {self._remedy(status)}"
        return RefusedError(told, status, error.code)

    def _remedy(self, status: int) -> str:
        variable = self._config.api_key_env
        if status in (401, 403):
            state = "is not set" if self._key == _NO_KEY else "holds a key that it does not take"
            return f"The environment variable {variable} (engine.api_key_env) {state}"
        if status == 404:
            return "Correct engine.url, which mostly ends with /v1, or engine.served_model"
        if status == 429:
            return "Ask less at a time (engine.max_num_seqs), or raise engine.retries"
        if status < 500:
            return "Change the setting that it names, or engine.max_model_len where it is too long"
        return "Repair the server"

    def _without_key(self, text: str) -> str:
        return text if self._key == _NO_KEY else text.replace(self._key, "…")


def _may_pass(error: BaseException) -> bool:
    """Whether another try may succeed."""
    import openai

    if isinstance(error, openai.APIStatusError):
        used_up = error.code == "insufficient_quota"
        passes = error.status_code in (408, 429) or error.status_code >= 500
        return passes and not used_up and error.status_code not in _NO_SUCH_PATH
    return isinstance(error, openai.APIConnectionError)  # time-outs are such


def _retry_after(error: BaseException | None) -> float | None:
    """The seconds that a server asks for."""
    response: Any = getattr(error, "response", None)
    try:
        seconds = float(response.headers["retry-after"]) if response is not None else -1.0
    except (KeyError, ValueError):
        return None
    return seconds if seconds >= 0 else None


def _listed(page: Any) -> list[ServedModel]:
    found = []
    for one in getattr(page, "data", None) or ():
        length = getattr(one, "max_model_len", None)
        found.append(ServedModel(str(one.id), length if isinstance(length, int) else None))
    return found
