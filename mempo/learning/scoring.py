"""The memory reward: P(answer | memory) − P(answer | history) (specification section 6).

For each scored round k the gold answer is scored under the policy in two contexts: after the
snapshot before the round (P_full; in memory-context rollouts ``scoring.history`` says whether that
is what the round saw or all that was seen) and after the prompt followed by the round's text up to
``</mem>`` (P_mem). With ``scoring.baseline=previous`` the memory context of the scored round before
takes the history's place, or, for the first, the question alone: no history is scored then.
``scoring.reward=log_probability`` takes the difference of log P (docs/switches.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from mempo.config import ScoringConfig
from mempo.learning.contexts import (
    Context,
    History,
    full_context,
    memory_context,
    question_context,
    whole_history,
)
from mempo.learning.gold_choice import ALIAS_LIMIT, best_gold, gold_texts, is_cut
from mempo.learning.memory_rewards import Scored, baseline_value, write_reward
from mempo.learning.memory_rewards import answer_probability as answer_probability
from mempo.learning.old_logprobs import trained_sequences, write_old_logprobs
from mempo.learning.pass_sizes import scoring_tokens
from mempo.learning.scored_rows import (
    RowKey,
    ScoredRow,
    ScoredText,
    encode_answer,
    score_padded,
    score_trees,
)
from mempo.learning.shared_prefix import unsupported_reason
from mempo.trajectory import Trajectory

_LOG = logging.getLogger(__name__)


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
        """Writes ``p_mem``, ``p_full`` or ``p_previous``, the kept shares and ``memory_reward``
        into the scored rounds. ``progress`` is told the number of rows done after each batch.

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
            before: Scored | None = None
            for scored in trajectory.scored_rounds():
                gold = golds[id(scored)]
                # A round without a baseline of its own has the memory before it.
                before = results.get((id(scored), False, gold), before)
                memory = results[id(scored), True, gold]
                assert before is not None
                write_reward(trajectory, scored, before, memory, self.config)
                before = memory

    def row_count(self, trajectories: Sequence[Trajectory]) -> int:
        """How many rows ``score`` will report, without building them."""
        count = 0
        for trajectory in trajectories:
            scored = len([*trajectory.scored_rounds()])
            baselines = scored if self.config.baseline == "history" else min(scored, 1)
            count += scored + baselines * (1 + len(self._tried(trajectory)))
        return count

    def rows(
        self, trajectories: Sequence[Trajectory], golds: Mapping[int, str] | None = None
    ) -> list[ScoredRow]:
        """A row for the baseline of each scored round that has one of its own, and one for each
        memory context. ``golds`` are their texts by the round's identity, ``None``: the first
        aliases'."""
        rows: list[ScoredRow] = []
        for trajectory in trajectories:
            history = self._history(trajectory)
            baselines = self._baselines(trajectory, history)
            behind = None if history is None else history.sequence
            if self.config.baseline == "previous":
                behind = trajectory.sequences[0]
            for scored in trajectory.scored_rounds():
                gold = trajectory.task.gold if golds is None else golds[id(scored)]
                text = self._encoded(gold)
                if id(scored) in baselines:
                    rows.append(ScoredRow(scored, baselines[id(scored)], text, gold, False))
                memory = memory_context(self.tokenizer, trajectory, scored, behind)
                rows.append(ScoredRow(scored, memory, text, gold, True))
        return rows

    def _baselines(self, trajectory: Trajectory, history: History | None) -> dict[int, Context]:
        """What memories are compared with, by the round's identity, where that is no memory: of
        every scored round its history, or of the first one the question alone."""
        scored = trajectory.scored_rounds()
        if self.config.baseline == "previous":
            return {id(first): question_context(trajectory) for first in islice(scored, 1)}
        return {id(one): full_context(trajectory, one, history) for one in scored}

    def _choose_golds(
        self,
        model: Any,
        trajectories: Sequence[Trajectory],
        progress: Callable[[int], None],
    ) -> tuple[dict[int, str], dict[RowKey, Scored]]:
        """The gold text of each scored round by its identity, and what had to be scored to choose
        them (``gold_choice.py``)."""
        golds = {id(one): t.task.gold for t in trajectories for one in t.scored_rounds()}
        if self.config.gold == "first":
            return golds, {}
        self._tell_of_cut(trajectories)
        rows = [
            ScoredRow(scored, baselines[id(scored)], self._encoded(gold), gold, False)
            for trajectory in trajectories
            for baselines in [self._baselines(trajectory, self._history(trajectory))]
            for scored in trajectory.scored_rounds()
            if id(scored) in baselines
            for gold in self._tried(trajectory)
        ]
        results = self._run(model, rows, progress)
        for trajectory in trajectories:
            tried = self._tried(trajectory)
            chosen = trajectory.task.gold
            for scored in trajectory.scored_rounds() if tried else ():
                if (id(scored), False, tried[0]) in results:  # a baseline of its own
                    values = {
                        gold: baseline_value(
                            trajectory, scored, results[id(scored), False, gold], self.config
                        )
                        for gold in tried
                    }
                    chosen = best_gold(trajectory.task, values)
                golds[id(scored)] = chosen
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
    ) -> dict[RowKey, Scored]:
        """Scores rows, and with a temperature the policy tokens of the trajectories ``trained``."""
        batch_tokens = scoring_tokens(self.config.batch_tokens, model)
        if self._as_tree(model):
            sequences = [] if old_temperature is None else trained_sequences(trained)
            logprobs = score_trees(
                model,
                rows,
                batch_tokens,
                sequences,
                old_temperature or 1.0,
                progress,
                self._batches_on_every_rank,
            )
        else:
            logprobs = score_padded(
                model, rows, batch_tokens, progress, self._batches_on_every_rank
            )
            if old_temperature is not None:
                write_old_logprobs(
                    model,
                    trained,
                    old_temperature,
                    batch_tokens,
                    self._batches_on_every_rank,
                )
        return {row.key: Scored(row.text, logp) for row, logp in zip(rows, logprobs, strict=True)}

    def _as_tree(self, model: Any) -> bool:
        if self.config.method == "padded":
            return False
        reason = unsupported_reason(model)
        if reason is not None and not self._said_why_padded:
            self._said_why_padded = True
            _LOG.warning("scoring.method=padded is used for this model: %s", reason)
        return reason is None
