"""The memory reward: P(answer | memory) − P(answer | history) (specification section 6).

For each scored round k the gold answer is scored under the policy in two contexts: after the
snapshot before the round (P_full; in memory-context rollouts ``scoring.history`` says whether that
is what the round saw or all that was seen) and after the prompt followed by the round's text up to
``</mem>`` (P_mem).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mempo.config import ScoringConfig
from mempo.learning.contexts import History, full_context, memory_context, whole_history
from mempo.learning.gold_choice import ALIAS_LIMIT, best_gold, gold_texts, is_cut
from mempo.learning.old_logprobs import trained_sequences, write_old_logprobs
from mempo.learning.scored_rows import (
    RowKey,
    ScoredRow,
    ScoredText,
    score_padded,
    score_trees,
)
from mempo.learning.shared_prefix import unsupported_reason
from mempo.trajectory import Round, Trajectory

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Scored:
    """Log-probabilities of a row's scored text, [len(text)]."""

    text: ScoredText
    logp: Tensor


def answer_probability(logp: Tensor, mask: Tensor, threshold: float | None, empty: str) -> Tensor:
    """The geometric-mean probability of the kept answer tokens.

    P = exp(Σ kept ℓ / (number kept + 1e-8)), paper equation 5 and specification section 6.

    Args:
        logp: log-probabilities ℓ, [..., T].
        mask: 1 on answer tokens, [..., T].
        threshold: a log-probability; tokens with ℓ > threshold are kept. ``None`` keeps all.
        empty: when the filter keeps nothing, ``"one"`` gives exp(0) = 1 (the released code),
            ``"unfiltered"`` falls back to all masked tokens.

    Returns:
        P, [...].
    """
    if empty not in ("one", "unfiltered"):
        raise ValueError(f"empty={empty!r}: use 'one' or 'unfiltered'")
    answer = mask.bool()
    return _mean_probability(logp, answer, _kept(logp, answer, threshold), empty)


def _kept(logp: Tensor, answer: Tensor, threshold: float | None) -> Tensor:
    return answer if threshold is None else answer & (logp > threshold)


def _mean_probability(logp: Tensor, answer: Tensor, kept: Tensor, empty: str) -> Tensor:
    if empty == "unfiltered":
        kept = torch.where(kept.any(-1, keepdim=True), kept, answer)
    total = torch.where(kept, logp, torch.zeros_like(logp)).sum(-1)
    return torch.exp(total / (kept.sum(-1) + 1e-8))


def encode_answer(tokenizer: Any, config: ScoringConfig, gold: str) -> ScoredText:
    """The scored text for one gold answer, tokenized once.

    The mask is 1 on exactly the tokens whose characters overlap the gold text.
    """
    # The two placeholders are replaced literally, so that a gold answer with braces is safe.
    head, tail = (
        part.replace("{filler}", config.filler) for part in config.answer_template.split("{gold}")
    )
    encoding = tokenizer(head + gold + tail, add_special_tokens=False, return_offsets_mapping=True)
    start, end = len(head), len(head) + len(gold)
    mask = tuple(int(first < end and last > start) for first, last in encoding["offset_mapping"])
    if not any(mask):
        raise ValueError(f"the gold answer {gold!r} has no token of its own: it cannot be scored")
    return ScoredText(tuple(encoding["input_ids"]), mask)


class MemoryScorer:
    """Scores trajectories with the policy itself.

    ``scoring.method=tree`` computes each sequence once (``tree_scoring.py``). ``padded`` is the
    reference method, with the same numbers: every context is a row of its own, left-padded. Both
    work in batches of at most ``batch_tokens`` tokens. Models whose keys and values cannot be
    reused are scored with ``padded``, and the reason is logged.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: ScoringConfig,
        batches_on_every_rank: Callable[[int], int] = lambda own: own,
    ) -> None:
        """``batches_on_every_rank`` turns this rank's number of batches into the largest of all
        ranks: sharded models need the same number of forward passes on each."""
        self.tokenizer = tokenizer
        self.config = config
        self._batches_on_every_rank = batches_on_every_rank
        self._said_why_padded = False
        self._said_aliases_cut = False
        self._texts: dict[str, ScoredText] = {}

    def score(
        self,
        model: Any,
        trajectories: Sequence[Trajectory],
        progress: Callable[[int], None] = lambda done: None,
        old_temperature: float | None = None,
    ) -> None:
        """Writes ``p_full``, ``p_mem``, the kept shares and ``memory_reward`` into the scored
        rounds. ``progress`` is told the number of rows done after each batch.

        With ``old_temperature`` it also writes ``old_logprobs`` into the sequences, at that
        temperature (``old_logprobs.py``): a tree gives them without a pass of their own.
        """
        self._texts.clear()
        golds, results = self._choose_golds(model, trajectories, progress)
        rows = self.rows(trajectories, golds)
        new = [row for row in rows if row.key not in results]
        results |= self._run(model, new, progress, trajectories, old_temperature)
        if len(new) < len(rows):
            progress(len(rows) - len(new))
        for trajectory in trajectories:
            for scored in trajectory.scored_rounds():
                gold = golds[id(scored)]
                full, memory = (results[id(scored), kind, gold] for kind in (False, True))
                self._write(trajectory, scored, full, memory)

    def row_count(self, trajectories: Sequence[Trajectory]) -> int:
        """How many rows ``score`` will report, without building them."""
        return sum(
            (2 + len(self._tried(trajectory))) * len([*trajectory.scored_rounds()])
            for trajectory in trajectories
        )

    def rows(
        self, trajectories: Sequence[Trajectory], golds: Mapping[int, str] | None = None
    ) -> list[ScoredRow]:
        """Two rows for each scored round: full history and memory context. ``golds`` are their
        texts by the round's identity, ``None``: the first aliases'."""
        rows: list[ScoredRow] = []
        for trajectory in trajectories:
            history = self._history(trajectory)
            for scored in trajectory.scored_rounds():
                gold = trajectory.task.gold if golds is None else golds[id(scored)]
                text = self._encoded(gold)
                full = full_context(trajectory, scored, history)
                memory = memory_context(self.tokenizer, trajectory, scored, history)
                rows.append(ScoredRow(scored, full, text, gold, False))
                rows.append(ScoredRow(scored, memory, text, gold, True))
        return rows

    def _choose_golds(
        self,
        model: Any,
        trajectories: Sequence[Trajectory],
        progress: Callable[[int], None],
    ) -> tuple[dict[int, str], dict[RowKey, _Scored]]:
        """The gold text of each scored round by its identity, and what had to be scored to choose
        them (``gold_choice.py``)."""
        golds = {id(one): t.task.gold for t in trajectories for one in t.scored_rounds()}
        if self.config.gold == "first":
            return golds, {}
        self._tell_of_cut(trajectories)
        rows = [
            ScoredRow(
                scored, full_context(trajectory, scored, history), self._encoded(gold), gold, False
            )
            for trajectory in trajectories
            for history in [self._history(trajectory)]
            for scored in trajectory.scored_rounds()
            for gold in self._tried(trajectory)
        ]
        results = self._run(model, rows, progress)
        for trajectory in trajectories:
            tried = self._tried(trajectory)
            for scored in trajectory.scored_rounds() if tried else ():
                p_full = {
                    gold: self._p_full(trajectory, scored, results[id(scored), False, gold])
                    for gold in tried
                }
                golds[id(scored)] = best_gold(trajectory.task, p_full)
        return golds, results

    def _tried(self, trajectory: Trajectory) -> list[str]:
        """The gold texts between which there is a choice."""
        texts = gold_texts(trajectory.task, self.config.gold)
        return texts if len(texts) > 1 else []

    def _tell_of_cut(self, trajectories: Sequence[Trajectory]) -> None:
        cut = {t.task.id for t in trajectories if is_cut(t.task)}
        if cut and not self._said_aliases_cut:
            self._said_aliases_cut = True
            _LOG.warning(
                "scoring.gold=best tries the first %d aliases of an objective; an objective of "
                "%d tasks of this epoch has more, among them %s",
                ALIAS_LIMIT,
                len(cut),
                min(cut),
            )

    def _history(self, trajectory: Trajectory) -> History | None:
        """In memory-context rollouts, whose rounds are sequences of their own, all that was seen
        where ``scoring.history=trajectory`` asks for it."""
        several = len(trajectory.sequences) > 1
        return (
            whole_history(trajectory) if several and self.config.history == "trajectory" else None
        )

    def _encoded(self, gold: str) -> ScoredText:
        if gold not in self._texts:
            self._texts[gold] = encode_answer(self.tokenizer, self.config, gold)
        return self._texts[gold]

    def _run(
        self,
        model: Any,
        rows: Sequence[ScoredRow],
        progress: Callable[[int], None],
        trained: Sequence[Trajectory] = (),
        old_temperature: float | None = None,
    ) -> dict[RowKey, _Scored]:
        """Scores rows, and with a temperature the policy tokens of the trajectories ``trained``."""
        if self._as_tree(model):
            sequences = [] if old_temperature is None else trained_sequences(trained)
            logprobs = score_trees(
                model,
                rows,
                self.config.batch_tokens,
                sequences,
                old_temperature or 1.0,
                progress,
                self._batches_on_every_rank,
            )
        else:
            logprobs = score_padded(
                model, rows, self.config.batch_tokens, progress, self._batches_on_every_rank
            )
            if old_temperature is not None:
                write_old_logprobs(
                    model,
                    trained,
                    old_temperature,
                    self.config.batch_tokens,
                    self._batches_on_every_rank,
                )
        return {row.key: _Scored(row.text, logp) for row, logp in zip(rows, logprobs, strict=True)}

    def _as_tree(self, model: Any) -> bool:
        if self.config.method == "padded":
            return False
        reason = unsupported_reason(model)
        if reason is not None and not self._said_why_padded:
            self._said_why_padded = True
            _LOG.warning("scoring.method=padded is used for this model: %s", reason)
        return reason is None

    @property
    def _threshold(self) -> float | None:
        return None if self.config.threshold is None else math.log(self.config.threshold)

    def _p_full(self, trajectory: Trajectory, scored: Round, full: _Scored) -> float:
        answer = _finite_answer(trajectory, scored, "history", full)
        return float(answer_probability(full.logp, answer, self._threshold, self.config.empty))

    def _write(self, trajectory: Trajectory, scored: Round, full: _Scored, memory: _Scored) -> None:
        config = self.config
        # Checked before any filter: a threshold would silently leave NaN out.
        answer = _finite_answer(trajectory, scored, "history", full)
        _finite_answer(trajectory, scored, "memory", memory)
        kept_full = kept_memory = _kept(full.logp, answer, self._threshold)
        if config.mask == "separate":
            kept_memory = _kept(memory.logp, answer, self._threshold)
        p_full = float(_mean_probability(full.logp, answer, kept_full, config.empty))
        p_memory = float(_mean_probability(memory.logp, answer, kept_memory, config.empty))
        count = float(answer.sum())
        scored.p_full, scored.p_mem = p_full, p_memory
        scored.kept_full = float(kept_full.sum()) / count
        scored.kept_mem = float(kept_memory.sum()) / count
        scored.memory_reward = p_memory - p_full


def _finite_answer(trajectory: Trajectory, scored: Round, context: str, found: _Scored) -> Tensor:
    """The answer mask, [len(text)]. Raises ``FloatingPointError`` for NaN or infinity in it."""
    answer = torch.tensor(found.text.mask, dtype=torch.bool)
    if not bool(torch.isfinite(found.logp[answer]).all()):
        raise FloatingPointError(
            f"the memory reward of {trajectory.name}, round {scored.number} is not finite: the "
            f"policy's logits after the {context} hold NaN or infinity"
        )
    return answer
