"""Rollouts of known size: the real engine samples, lengths are forced, and tools are scripted.

A random model never calls a tool. So every round samples exactly as many tokens as it may, whatever
they are, and its last tokens are then replaced by those of a scripted text: the call of a tool, or
the answer. All else is the program's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import STOP_STRINGS, TAGS
from mempo.config import EngineConfig
from mempo.engine.interface import Generation, Sampling
from mempo.engine.start_arguments import Use
from mempo.engine.vllm_engine import Engine, EngineError
from mempo.retrieval.base import Page, Passage

Ending = Callable[[str, int], str]
"""The scripted text that ends a round, from the trajectory's key and the round's number (from 1).
"""

TITLE = "page"

_NEVER_SAMPLED = "\ue000"
"""A private character of Unicode."""


@dataclass
class Request:
    """One round of a trajectory: what the engine was asked, what it sampled, and when it ended
    (``time.perf_counter``)."""

    key: str
    number: int
    prompt_ids: list[int]
    tokens: int
    seed: int
    sampled: list[int] | None = None
    finished_at: float = 0.0


def forced_parameters(tokens: int, seed: int) -> Any:
    """Exactly ``tokens`` tokens at temperature 1; all else as ``Engine.submit`` asks for it, except
    that the stop strings, which a random model may happen to sample, are others of their lengths.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        seed=seed,
        max_tokens=tokens,
        logprobs=0,
        stop=[_NEVER_SAMPLED * len(string) for string in STOP_STRINGS],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


class ForcedEngine(Engine):
    """The engine with forced lengths and scripted ends of rounds."""

    def __init__(
        self,
        model: str,
        config: EngineConfig,
        dtype: str,
        conversation: Conversation,
        ending: Ending,
    ) -> None:
        super().__init__(model, config, Use(dtype))
        self._conversation = conversation
        self._ending = ending
        self._encoded: dict[str, list[int]] = {}
        self.requests: list[Request] = []
        self._newest: dict[str, Request] = {}

    def start(self) -> None:
        """Forgets the last rollout, its cached prefixes too."""
        self._forget()
        if not self._llm.reset_prefix_cache():
            raise EngineError("the engine did not reset its prefix cache")

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        super().sync(weights)
        self._forget()

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        number = self._newest[key].number + 1 if key in self._newest else 1
        request = Request(key, number, prompt_ids, max_tokens, seed)
        self._newest[key] = request
        self.requests.append(request)
        self._requests += 1
        request_id = str(self._requests)
        self._keys[request_id] = key
        self._llm.llm_engine.add_request(
            request_id, {"prompt_token_ids": prompt_ids}, forced_parameters(max_tokens, seed)
        )

    def step(self) -> list[Generation]:
        return [self._with_ending(generation) for generation in super().step()]

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """The engine's own ``generate`` on the same prompts, lengths and seeds; what it sampled."""
        outputs = self._llm.generate(
            [{"prompt_token_ids": request.prompt_ids} for request in requests],
            [forced_parameters(request.tokens, request.seed) for request in requests],
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _forget(self) -> None:
        self.requests = []
        self._newest = {}

    def _with_ending(self, generation: Generation) -> Generation:
        request = self._newest[generation.key]
        request.finished_at = time.perf_counter()
        request.sampled = generation.ids
        if len(generation.ids) != request.tokens:
            raise EngineError(f"a round of {request.tokens} tokens ended at {len(generation.ids)}")
        text = self._ending(request.key, request.number)
        if text not in self._encoded:
            self._encoded[text] = self._conversation.encode(text)
        tail = self._encoded[text]
        if len(tail) >= len(generation.ids):
            raise EngineError(f"a round needs more than the {len(tail)} tokens of {text!r}")
        sampled = generation.ids[: -len(tail)]
        if any(f"{tag}>" in self._conversation.decode(sampled) for tag in TAGS):
            sampled = self._conversation.encode("x")[:1] * len(sampled)  # a tag by chance
        ids = [*sampled, *tail]
        return Generation(generation.key, ids, generation.logprobs, "stop")


class ScriptedRetriever:
    """Finds the same text for every query, after a while: ``delays`` gives the seconds by query,
    ``delay`` those of all other queries."""

    def __init__(self, text: str, delay: float, delays: dict[str, float] | None = None) -> None:
        self.text = text
        self.delay = delay
        self.delays = delays or {}

    def search(self, query: str, top_k: int) -> list[Passage]:
        time.sleep(self.delays.get(query, self.delay))
        return [Passage(TITLE, self.text)]

    def open_page(self, key: str) -> Page | None:
        raise NotImplementedError("no scripted round opens a page")


def observation_tokens(conversation: Conversation, text: str) -> int:
    """The tokens between two rounds when a search finds ``text``, glue included."""
    shown = conversation.wrap_observation(f"1. {TITLE}: {text}", 10**6)
    return len(conversation.observation_ids(shown))
