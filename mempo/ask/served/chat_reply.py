"""What a chat completion says of a question: answer, rounds, tokens, ending."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from mempo.agent.protocol import ANSWER_TAG, Protocol, parse_round
from mempo.trajectory import Ending, Round, Trajectory

Rounds = Literal["hidden", "reasoning", "whole"]
"""Where the rounds go: nowhere, into the reasoning, or into the content."""


class Reply:
    """One completion, whole or in chunks. ``rounds`` says where they go, ``protocol`` how they are
    written."""

    def __init__(self, model: str, rounds: Rounds, protocol: Protocol) -> None:
        self._rounds: Rounds = rounds
        self._protocol = protocol
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, trajectory: Trajectory) -> dict[str, Any]:
        """The object of a request without ``stream``."""
        message: dict[str, Any] = {"role": "assistant", "content": trajectory.answer or ""}
        if self._rounds == "whole":
            message["content"] = "".join(map(round_text, trajectory.rounds))
        elif self._rounds == "reasoning":
            thoughts = (thought_text(one, self._protocol) for one in trajectory.rounds)
            message |= _reasoning("".join(thoughts))
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(trajectory),
        }
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(trajectory),
            "mempo": details(trajectory),
        }

    def first_chunk(self) -> dict[str, Any]:
        """The chunk with the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def round_chunks(self, one: Round) -> Sequence[dict[str, Any]]:
        """The chunk of a round, where the rounds are told."""
        if self._rounds == "whole":
            return [self._chunk({"content": round_text(one)})]
        if self._rounds == "reasoning":
            return [self._chunk(_reasoning(thought_text(one, self._protocol)))]
        return []

    def last_chunks(self, trajectory: Trajectory, include_usage: bool) -> list[dict[str, Any]]:
        """The chunks of answer, ending and tokens."""
        chunks = []
        if trajectory.answer and self._rounds != "whole":
            chunks.append(self._chunk({"content": trajectory.answer}))
        end = self._chunk({}, finish_reason(trajectory))
        chunks.append({**end, "mempo": details(trajectory)})
        if include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(trajectory)})
        return chunks

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}


def event(value: dict[str, Any] | str) -> bytes:
    """One event of a stream."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"data: {text}\n\n".encode()


def round_text(one: Round) -> str:
    """A round as the model wrote it, with what its tool returned."""
    return "\n".join(part for part in (one.text, one.observation) if part) + "\n"


def thought_text(one: Round, protocol: Protocol) -> str:
    """The same without the answer, which is the content."""
    if one.action != ANSWER_TAG:
        return round_text(one)
    for memory in (True, False):  # a context without one reads on where another sees its body
        spans = parse_round(one.text, one.number, protocol.with_memory(memory)).spans
        for span in spans:
            if span.tag == ANSWER_TAG and span.closed:
                return one.text[: span.start]
    return one.text


def finish_reason(trajectory: Trajectory) -> str:
    """``length`` where a limit was reached before an answer."""
    ends = (Ending.ANSWERED, Ending.NO_ACTION)
    return "stop" if trajectory.ending in ends else "length"


def usage(trajectory: Trajectory) -> dict[str, int]:
    """Tokens over all rounds: sent to the model, sampled, and both."""
    total, sampled = trajectory.total_tokens, trajectory.policy_tokens
    return {
        "prompt_tokens": total - sampled,
        "completion_tokens": sampled,
        "total_tokens": total,
    }


def details(trajectory: Trajectory) -> dict[str, Any]:
    """What the protocol has no field for."""
    return {
        "ending": trajectory.ending,
        "rounds": len(trajectory.rounds),
        "tool_calls": trajectory.tool_calls,
        "tool_failures": trajectory.tool_failures,
        "peak_tokens": trajectory.peak_tokens,
    }


def _reasoning(text: str) -> dict[str, str]:
    """Under the name that clients know, and under the one that vLLM gives it since."""
    return {"reasoning_content": text, "reasoning": text}
