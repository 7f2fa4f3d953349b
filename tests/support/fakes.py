"""Stand-ins for the engine and the retriever that check what they are given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mempo.agent.conversation import Conversation
from mempo.engine.interface import Generation, Sampling
from mempo.retrieval.base import InMemoryRetriever, Page, Passage, RetrievalError

Piece = str | list[int]
Script = Sequence[Piece] | Callable[[int], Piece]
LOGPROB = -0.5


@dataclass(frozen=True)
class Request:
    """What the engine was asked, and what it gave."""

    key: str
    prompt_ids: list[int]
    max_tokens: int
    seed: int
    sampling: Sampling
    generation: Generation


class ScriptedEngine:
    """Gives each request the next piece of its trajectory's script.

    ``scripts`` goes by key (``"task/sample"``) or is one script for all; a script is a list of
    pieces or a function of the request's number (from 0). A piece is text, which is tokenized, or
    ids, which are given as they are. Sampling ends as in vLLM: after the id with which a stop text
    is complete (the id may hold more than the stop text), after an end-of-turn id, or at
    ``max_tokens``. A piece that ends in none of these ends with the end-of-turn id.
    """

    def __init__(
        self,
        conversation: Conversation,
        scripts: Mapping[str, Script] | Script,
        max_model_len: int = 100_000,
    ) -> None:
        self.max_model_len = max_model_len
        self.requests: list[Request] = []
        self.aborted = 0
        self._conversation = conversation
        self._scripts = scripts
        self._running: dict[str, Generation] = {}
        self._counts: dict[str, int] = {}

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        assert isinstance(prompt_ids, list)
        assert all(type(token) is int for token in prompt_ids)
        assert prompt_ids, "an empty prompt"
        assert max_tokens >= 1
        assert len(prompt_ids) + max_tokens <= self.max_model_len
        assert 0 <= seed < 2**31
        assert key not in self._running, f"{key} is still running"
        number = self._counts.get(key, 0)
        self._counts[key] = number + 1
        script = self._scripts[key] if isinstance(self._scripts, Mapping) else self._scripts
        piece = script(number) if callable(script) else script[number]
        ids = self._conversation.encode(piece) if isinstance(piece, str) else list(piece)
        self._running[key] = self._generate(key, ids, max_tokens)
        self.requests.append(
            Request(key, list(prompt_ids), max_tokens, seed, sampling, self._running[key])
        )

    def step(self) -> list[Generation]:
        """The oldest request finishes."""
        assert self._running, "a step without requests"
        return [self._running.pop(next(iter(self._running)))]

    def has_unfinished(self) -> bool:
        return bool(self._running)

    def abort_all(self) -> None:
        self.aborted += 1
        self._running.clear()

    def of(self, key: str) -> list[Request]:
        """The requests of one trajectory, in order."""
        return [request for request in self.requests if request.key == key]

    def _generate(self, key: str, ids: list[int], max_tokens: int) -> Generation:
        sampled: list[int] = []
        for token in [*ids, self._conversation.tokenizer.eos_token_id]:
            if len(sampled) == max_tokens:
                return Generation(key, sampled, [LOGPROB] * len(sampled), "length")
            sampled.append(token)
            text = self._conversation.decode(sampled)
            stops = self._conversation.protocol.stop_strings
            if token in self._conversation.end_ids or any(stop in text for stop in stops):
                break
        return Generation(key, sampled, [LOGPROB] * len(sampled), "stop")


class FakeRetriever(InMemoryRetriever):
    """Finds the passage whose title is the query. Special queries: ``bug`` raises a
    ``ZeroDivisionError``, ``down`` a ``RetrievalError``."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages = dict(pages)
        self.queries: list[str] = []

    def search(self, query: str, top_k: int) -> list[Passage]:
        assert isinstance(query, str)
        assert query
        assert top_k >= 1
        self.queries.append(query)
        if query == "bug":
            raise ZeroDivisionError("a bug in the retriever")
        if query == "down":
            raise RetrievalError("the server is down")
        return [Passage(query, self.pages[query])] if query in self.pages else []

    def open_page(self, key: str) -> Page | None:
        self.queries.append(key)
        return Page(key, self.pages[key]) if key in self.pages else None


class SlowRetriever(FakeRetriever):
    """Holds the query ``slow`` back until ``release`` is set. ``timed_out`` tells whether it gave
    up waiting."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        super().__init__(pages)
        self.release = threading.Event()
        self.timed_out = False

    def search(self, query: str, top_k: int) -> list[Passage]:
        if query == "slow" and not self.release.wait(timeout=20):
            self.timed_out = True
        return super().search(query, top_k)


class AnsweringEngine(ScriptedEngine):
    """Says what ``answer`` makes of each request's prompt text. ``stop_after`` that many finished
    requests it raises ``error``, as if the call was stopped there."""

    def __init__(
        self,
        conversation: Conversation,
        answer: Callable[[str], str],
        stop_after: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(conversation, [])
        self.closed = 0
        self._answer = answer
        self._left = stop_after
        self._error = error or KeyboardInterrupt()

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        self._scripts = [self._answer(self._conversation.decode(prompt_ids))]
        self._counts.pop(key, None)
        super().submit(key, prompt_ids, max_tokens, seed, sampling)

    def step(self) -> list[Generation]:
        if self._left == 0:
            raise self._error
        if self._left is not None:
            self._left -= 1
        return super().step()

    def close(self) -> None:
        self.closed += 1
