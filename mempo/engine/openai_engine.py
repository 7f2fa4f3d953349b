"""Engines that ask a server of OpenAI's protocol instead of vLLM in this process.

``CompletionsEngine`` is exact: token ids go in, and the sampled ids come back with their
log-probabilities (``vllm serve`` returns them). ``ChatEngine`` sends messages and tokenizes the
text that comes back, since hosted models take and give nothing else. ``server_start.py`` picks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Final, Literal

from mempo.engine.errors import EngineError
from mempo.engine.event_loop import EventLoop
from mempo.engine.interface import Generation, Messages, Sampling
from mempo.engine.openai_server import OpenAIServer, RefusedError

_STEP_SECONDS: Final = 0.05
_TRIAL: Final = "<mem>Who wrote it?</mem><search>The 1st page, in fact.</search>\n"
_KNOWS_NOT: Final = frozenset({400, 404, 405, 422, 501})
"""What servers answer that have no such path or field."""

_OPTIONAL: Final = ("stop", "seed")
_FILTERED: Final = "content_filter"
"""Both a reason why an answer ended and a code of what is refused altogether."""

_LOG: Final = logging.getLogger(__name__)

_PLAIN: Final = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
}
"""Nothing is taken from a model's ``generation_config`` (specification section 4)."""


@dataclass(frozen=True)
class TextCodec:
    """What an engine needs to know of the conversation.

    ``exact``: ``encode`` is the served model's own. ``unclosed(text)`` is the
    stop text that would close the action which ``text`` ends in, empty where it ends in none.
    """

    encode: Callable[[str], list[int]]
    end_ids: Sequence[int]
    end_of_turn: int | None
    stop_strings: Sequence[str]
    unclosed: Callable[[str], str]
    exact: bool = True


class _ServerEngine:
    """Requests on an event loop of its own thread; what both engines share."""

    def __init__(self, server: OpenAIServer, codec: TextCodec, loop: EventLoop) -> None:
        self.model = ""
        self.max_model_len = 0
        self._server, self._codec, self._loop = server, codec, loop
        self._running: dict[Future[Generation], str] = {}

    def step(self) -> list[Generation]:
        """The requests that have finished; waits a moment where none has."""
        done, _ = wait(self._running, timeout=_STEP_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            del self._running[future]
        return [future.result() for future in done]

    def has_unfinished(self) -> bool:
        """True while requests are on their way."""
        return bool(self._running)

    def abort_all(self) -> None:
        """Drops all requests; their connections are closed."""
        for future in self._running:
            future.cancel()
        self._running.clear()

    def close(self) -> None:
        """Ends the requests and the connections. Safe to call twice."""
        self.abort_all()
        self._loop.close(self._server.close)

    def _begin(self, key: str, request: Coroutine[Any, Any, Generation]) -> None:
        self._running[self._loop.start(request)] = key


class CompletionsEngine(_ServerEngine):
    """Asks ``/completions`` with token ids (``GenerationEngine``)."""

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Sends one request."""
        self._begin(key, self._generate(key, prompt_ids, max_tokens, seed, sampling))

    async def _generate(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> Generation:
        choice = await self._server.completion(
            model=self.model,
            prompt=prompt_ids,
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=None if sampling.temperature == 0.0 else seed,
            stop=list(self._codec.stop_strings),
            logprobs=0,
            extra_body={
                **_PLAIN,
                "top_k": max(sampling.top_k, 0),
                "stop_token_ids": list(self._codec.end_ids),
                "include_stop_str_in_output": True,
                "skip_special_tokens": True,
                "return_token_ids": True,
            },
        )
        ids = _token_ids(choice)
        if ids is None:
            raise EngineError(f"{self._server.url}: an answer came without its token ids")
        told = getattr(choice.logprobs, "token_logprobs", None) or ()
        logprobs = [math.nan if one is None else float(one) for one in told]
        if len(logprobs) != len(ids):
            logprobs = [math.nan] * len(ids)
        return Generation(key, ids, logprobs, _reason(choice.finish_reason))

    async def gives_ids(self) -> bool:
        """Whether the server takes and gives token ids. Raises ``EngineError`` when its tokenizer
        is another one than the conversation's."""
        trial = {"return_token_ids": True, "add_special_tokens": False}
        try:
            choice = await self._server.completion(
                model=self.model, prompt=_TRIAL, max_tokens=1, temperature=0.0, extra_body=trial
            )
        except RefusedError as error:
            if error.status in _KNOWS_NOT:
                return False
            raise
        if _token_ids(choice) is None:
            return False
        read = getattr(choice, "prompt_token_ids", None)
        if read is not None and list(read) != self._codec.encode(_TRIAL):
            raise EngineError(
                f"{self._server.url}: {self.model} has another tokenizer than the one that is "
                "read here: name the folder of the model that is served, or set "
                "engine.protocol=chat, which needs none"
            )
        return True


class ChatEngine(_ServerEngine):
    """Asks ``/chat/completions`` with messages (``mempo.engine.interface.ChatEngine``).

    The text that comes back is tokenized here, and log-probabilities are NaN. Servers leave the
    stop text out; it is put back where the text ends inside an action.
    """

    def __init__(self, server: OpenAIServer, codec: TextCodec, loop: EventLoop) -> None:
        super().__init__(server, codec, loop)
        self._limit_name = "max_tokens"
        self._left_out: frozenset[str] = frozenset()

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Not for chats, which are asked with messages."""
        raise EngineError("engine.protocol=chat is asked with messages, not with token ids")

    def submit_messages(
        self, key: str, messages: Messages, max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        """Sends one request."""
        self._begin(key, self._generate(key, messages, max_tokens, seed, sampling))

    async def _generate(
        self, key: str, messages: Messages, max_tokens: int, seed: int, sampling: Sampling
    ) -> Generation:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop": list(self._codec.stop_strings),
        }
        if sampling.temperature > 0.0:
            body["seed"] = seed
        if sampling.top_k > 0:
            body["extra_body"] = {"top_k": sampling.top_k}
        text, ended = await self._ask(body, max_tokens)
        reason = _reason(ended)
        ids = self._codec.encode(text)
        if reason == "stop":
            closing = self._codec.unclosed(text)
            end = [] if self._codec.end_of_turn is None else [self._codec.end_of_turn]
            # What ends in no action ended by itself: the turn is over, and goes on with nothing.
            ids = self._codec.encode(text + closing) if closing else [*ids, *end]
        return Generation(key, ids, [math.nan] * len(ids), reason)

    async def _ask(self, body: dict[str, Any], max_tokens: int) -> tuple[str, str | None]:
        """What was said and why it ended; nothing, where the server's filter takes the context."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self._left_out}
            sent[self._limit_name] = max_tokens
            try:
                return await self._server.chat(**sent)
            except RefusedError as error:
                if error.code == _FILTERED:
                    _LOG.warning("%s filtered a round, which is left empty", self.model)
                    return "", _FILTERED
                if error.status not in _KNOWS_NOT or not self._adapts(str(error), sent):
                    raise

    def _adapts(self, refusal: str, sent: dict[str, Any]) -> bool:
        """Newer hosted models take the limit under another name, and some no stop texts or seed:
        whatever stands behind an action is cut here anyway."""
        if "max_tokens" in sent and "max_completion_tokens" in refusal:
            self._limit_name = "max_completion_tokens"
            return True
        refused = next((one for one in _OPTIONAL if one in sent and f"'{one}'" in refusal), None)
        if refused is None:
            return False
        if refused not in self._left_out:
            _LOG.warning("%s takes no %r, which is left out", self.model, refused)
        self._left_out |= {refused}
        return True


def _token_ids(choice: Any) -> list[int] | None:
    found = getattr(choice, "token_ids", None)
    return None if found is None else [int(one) for one in found]


def _reason(ended: str | None) -> Literal["stop", "length"]:
    """A content filter, a call of a function that nobody offered: the turn is over."""
    return "length" if ended == "length" else "stop"
