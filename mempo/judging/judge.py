"""A language model that judges answers (docs/rewards.md): one question per objective, yes or no."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from mempo.config import JudgeConfig
from mempo.judging.cache import JudgementCache
from mempo.judging.chat import JudgeServer, NoReplyError
from mempo.judging.prompt import JudgePrompt, read_verdict
from mempo.learning.rewards import exact_match, split_answer
from mempo.runtime.errors import MempoError
from mempo.trajectory import Task

FEWEST_FAILURES: Final = 4
"""So many are waited for before their share counts, until an epoch is over."""

_SHOWN: Final = 120


class JudgeFailureError(MempoError):
    """Too many judgements failed."""


class Judge:
    """Judges the answers of one epoch or evaluation. Thread safe. Close it.

    Args:
        config: the server, the model, the prompt, and the share of requests that may fail.
        cache_dir: where verdicts are kept for later runs.
    """

    def __init__(self, config: JudgeConfig, cache_dir: str) -> None:
        self._config = config
        self._prompt = JudgePrompt(config.prompt)
        self._cache = JudgementCache(cache_dir)
        self._server = JudgeServer(config)
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, tuple[str, ...], str], Future[bool | None]] = {}
        self._requests = self._failures = 0
        self._last_failure = ""

    def close(self) -> None:
        """Closes connections and cache."""
        self._server.close()
        self._cache.close()

    def score(self, answer: str | None, task: Task) -> dict[str, float]:
        """The metrics of one answer: ``judge`` (mean over objectives), ``judge_sum``,
        ``judge_failed`` (parts without a verdict, which count as exact match counts them), and
        where there was a verdict ``judge_agreement``, the share of them that exact match shares.

        No answer, a blank part, no gold: 0, and nobody is asked. Raises ``JudgeFailureError`` once
        too many fail, and ``MempoError`` for a server that cannot be used.
        """
        parts, _ = split_answer(answer, len(task.objectives))
        total, same, verdicts, failed = 0.0, 0, 0, 0
        for part, objective in zip(parts, task.objectives, strict=True):
            golds = [gold for gold in objective.golds if gold and gold.strip()]
            if not part or not golds:
                continue
            exact = exact_match(part, golds)
            right = self._verdict(objective.question, golds, part)
            total += exact if right is None else float(right)
            failed += int(right is None)
            verdicts += int(right is not None)
            same += int(right is not None and right == bool(exact))
        scores = {"judge": total / len(parts), "judge_sum": total, "judge_failed": float(failed)}
        if verdicts:
            scores["judge_agreement"] = same / verdicts
        return scores

    def check(self) -> None:
        """For the end of an epoch. Raises ``JudgeFailureError`` where too many failed."""
        with self._lock:
            if self._failures > self._config.max_failure_rate * self._requests:
                raise self._stop()

    def probe(self) -> None:
        """Asks about an answer that is right, whatever the cache holds. Raises ``MempoError`` where
        no verdict comes."""
        try:
            reply = self._server.reply(
                self._prompt.render("What is the capital of France?", ["Paris"], "Paris")
            )
        except NoReplyError as error:
            raise MempoError(f"the judge does not reply: {error}") from None
        if read_verdict(reply) is None:
            raise MempoError(f"the judge's {_no_verdict(reply)}")

    def _verdict(self, question: str, golds: Sequence[str], answer: str) -> bool | None:
        """What the model says, asked once for the same content; ``None`` where that failed."""
        key = (question, tuple(golds), answer)
        with self._lock:
            before = self._asked.get(key)
            own: Future[bool | None] = Future()
            if before is None:
                self._asked[key] = own
        if before is not None:
            return before.result()
        right = None
        try:
            right = self._look_up_or_ask(question, list(golds), answer)
        finally:
            if right is None:  # another trajectory may try again
                with self._lock:
                    del self._asked[key]
            own.set_result(right)
        return right

    def _look_up_or_ask(self, question: str, golds: list[str], answer: str) -> bool | None:
        config = self._config
        content = {
            "model": config.model,
            "prompt": self._prompt.text,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "request": config.request,
            "question": question,
            "golds": golds,
            "answer": answer,
        }
        if (known := self._cache.get(content)) is not None:
            return known
        try:
            reply = self._server.reply(self._prompt.render(question, golds, answer))
        except NoReplyError as error:
            self._count_failure(str(error))
            return None
        if (right := read_verdict(reply)) is None:
            self._count_failure(_no_verdict(reply))
            return None
        with self._lock:
            self._requests += 1
        self._cache.put(content, right, reply)
        return right

    def _count_failure(self, cause: str) -> None:
        with self._lock:
            self._requests += 1
            self._failures += 1
            self._last_failure = cause
            allowed = self._config.max_failure_rate * self._requests
            if self._failures >= FEWEST_FAILURES and self._failures > allowed:
                raise self._stop()

    def _stop(self) -> JudgeFailureError:
        return JudgeFailureError(
            f"{self._failures} of {self._requests} judgements of this epoch failed, more than "
            f"reward.judge.max_failure_rate={self._config.max_failure_rate:g} allows. Last cause: "
            f"{self._last_failure}. Repair the judge, or raise the rate"
        )


def _no_verdict(reply: str) -> str:
    shown = reply if len(reply) <= _SHOWN else f"…{reply[-_SHOWN:]}"
    return (
        f"reply holds neither yes nor no after its thoughts: {shown!r}; a longer reply needs "
        "reward.judge.max_tokens, another wording reward.judge.prompt"
    )
