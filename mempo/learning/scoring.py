"""The memory reward: P(answer | memory) − P(answer | full history) (specification section 6).

For each scored round k the gold answer is scored under the policy in two contexts: after the
snapshot before the round (P_full) and after the prompt followed by the round's tokens up to
``</mem>`` (P_mem).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mempo.config import ScoringConfig
from mempo.learning.batches import group_by_tokens
from mempo.learning.logprobs import WantedTokens, token_logprobs
from mempo.learning.old_logprobs import trained_sequences, write_old_logprobs
from mempo.learning.shared_prefix import unsupported_reason
from mempo.learning.tree_scoring import Branch, Tree, tree_logprobs
from mempo.trajectory import Round, Task, TokenSequence, Trajectory

_LOG = logging.getLogger(__name__)
_MAX_ALIAS_COMBINATIONS = 16


@dataclass(frozen=True)
class ScoredText:
    """The scored text's token ids and the answer mask: 1 on tokens that carry gold text."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


@dataclass(frozen=True)
class _Row:
    """One context followed by a scored text, and where its result goes.

    The context is the first ``prefix`` tokens of ``sequence`` and then its ``own`` tokens: the last
    token of a context that is a prefix of the sequence, or the memory after the prompt.
    """

    round: Round
    sequence: TokenSequence
    prefix: int
    own: tuple[int, ...]
    text: ScoredText
    alias: int
    is_memory: bool

    def __len__(self) -> int:
        return self.prefix + len(self.own) + len(self.text.ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Context and scored text."""
        return (*self.sequence.ids[: self.prefix], *self.own, *self.text.ids)


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


def gold_texts(task: Task, choice: str) -> list[str]:
    """The gold texts to score: the first alias of each objective joined with ``"; "``, or for
    ``best`` the combinations of aliases (the first 16 of them)."""
    if choice == "first":
        return [task.gold]
    combinations = itertools.product(*(objective.golds for objective in task.objectives))
    return [
        "; ".join(combination)
        for combination in itertools.islice(combinations, _MAX_ALIAS_COMBINATIONS)
    ]


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
        rows = self.rows(trajectories)
        if self._as_tree(model):
            sequences = [] if old_temperature is None else trained_sequences(trajectories)
            logprobs = self._score_trees(model, rows, sequences, old_temperature or 1.0, progress)
        else:
            logprobs = self._score_padded(model, rows, progress)
            if old_temperature is not None:
                write_old_logprobs(
                    model,
                    trajectories,
                    old_temperature,
                    self.config.batch_tokens,
                    self._batches_on_every_rank,
                )
        results: dict[tuple[int, bool, int], tuple[Tensor, ScoredText]] = {
            (id(row.round), row.is_memory, row.alias): (logp, row.text)
            for row, logp in zip(rows, logprobs, strict=True)
        }
        for trajectory in trajectories:
            aliases = len(gold_texts(trajectory.task, self.config.gold))
            for scored in trajectory.scored_rounds():
                pairs = [
                    (results[id(scored), False, alias], results[id(scored), True, alias])
                    for alias in range(aliases)
                ]
                self._write(scored, pairs, trajectory)

    def row_count(self, trajectories: Sequence[Trajectory]) -> int:
        """How many rows ``score`` will report, without building them."""
        return sum(
            2
            * len(gold_texts(trajectory.task, self.config.gold))
            * len([*trajectory.scored_rounds()])
            for trajectory in trajectories
        )

    def rows(self, trajectories: Sequence[Trajectory]) -> list[_Row]:
        """Two rows for each scored round and gold text: full history and memory context."""
        rows: list[_Row] = []
        encoded: dict[str, ScoredText] = {}
        for trajectory in trajectories:
            for alias, gold in enumerate(gold_texts(trajectory.task, self.config.gold)):
                if gold not in encoded:
                    encoded[gold] = encode_answer(self.tokenizer, self.config, gold)
                text = encoded[gold]
                for scored in trajectory.scored_rounds():
                    sequence = trajectory.sequences[scored.sequence]
                    last = scored.snapshot_length - 1
                    newest = tuple(sequence.ids[last : last + 1])
                    rows.append(_Row(scored, sequence, last, newest, text, alias, False))
                    sequence, prefix, own = _memory_context(trajectory, scored)
                    rows.append(_Row(scored, sequence, prefix, own, text, alias, True))
        return rows

    def _as_tree(self, model: Any) -> bool:
        if self.config.method == "padded":
            return False
        reason = unsupported_reason(model)
        if reason is not None and not self._said_why_padded:
            self._said_why_padded = True
            _LOG.warning("scoring.method=padded is used for this model: %s", reason)
        return reason is None

    def _score_trees(
        self,
        model: Any,
        rows: Sequence[_Row],
        old: Sequence[TokenSequence],
        old_temperature: float,
        progress: Callable[[int], None],
    ) -> list[Tensor]:
        """Log-probabilities of each row's scored text, on the CPU, [len(text)], and those of the
        policy tokens of the sequences ``old``, written into them.

        One tree for each sequence; equal ones, of trajectories that are alike, once.
        """
        rows_of: dict[int, list[int]] = {}
        sequences = {id(sequence): sequence for sequence in old}
        for index, row in enumerate(rows):
            rows_of.setdefault(id(row.sequence), []).append(index)
            sequences.setdefault(id(row.sequence), row.sequence)
        wanted = {id(sequence) for sequence in old}
        places: dict[Tree, list[int]] = {}
        for key, sequence in sequences.items():
            members = [rows[index] for index in rows_of.get(key, [])]
            own = tuple(i for i, policy in enumerate(sequence.mask) if policy and key in wanted)
            longest = max([row.prefix for row in members] + [own[-1] + 1 if own else 1])
            branches = (Branch(r.prefix, r.own + r.text.ids, len(r.own)) for r in members)
            tree = Tree(tuple(sequence.ids[:longest]), tuple(branches), own)
            places.setdefault(tree, []).append(key)
        done = sum(len(tree.branches) for tree in places)
        values = tree_logprobs(
            model,
            [*places],
            self.config.batch_tokens,
            old_temperature,
            progress,
            self._batches_on_every_rank,
        )
        progress(len(rows) - done)
        results: list[Tensor] = [torch.empty(0)] * len(rows)
        for (tree, keys), of_tree in zip(places.items(), values, strict=True):
            for key in keys:
                for index, logp in zip(rows_of.get(key, []), of_tree.branches, strict=True):
                    results[index] = logp
                if key in wanted:
                    old_logprobs = [0.0] * len(sequences[key])
                    for position, logp in zip(tree.own, of_tree.own.tolist(), strict=True):
                        old_logprobs[position] = logp
                    sequences[key].old_logprobs = old_logprobs
        return results

    @torch.no_grad()
    def _score_padded(
        self, model: Any, rows: Sequence[_Row], progress: Callable[[int], None]
    ) -> list[Tensor]:
        """Every context a row of its own, left-padded."""
        # The trajectories of a group often begin alike, and short memories repeat: equal rows are
        # computed once.
        alike: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for index, row in enumerate(rows):
            alike.setdefault((row.ids, len(row.text.ids)), []).append(index)
        groups = sorted(alike.values(), key=lambda group: len(rows[group[0]]))
        results: list[Tensor | None] = [None] * len(rows)
        batches = group_by_tokens(
            groups, lambda group: len(rows[group[0]]), self.config.batch_tokens
        )
        for batch in batches:
            logprobs = _padded_logprobs(model, [rows[group[0]] for group in batch])
            for group, logp in zip(batch, logprobs, strict=True):
                for index in group:
                    results[index] = logp
            progress(sum(map(len, batch)))
        for _ in range(self._batches_on_every_rank(len(batches)) - len(batches)):
            _empty_forward(model)
        return [logp for logp in results if logp is not None]

    def _write(
        self,
        scored: Round,
        pairs: list[tuple[tuple[Tensor, ScoredText], tuple[Tensor, ScoredText]]],
        trajectory: Trajectory,
    ) -> None:
        config = self.config
        threshold = None if config.threshold is None else math.log(config.threshold)
        best: tuple[float, float, float, float] | None = None
        for (full, text), (memory, _) in pairs:
            answer = torch.tensor(text.mask, dtype=torch.bool)
            # Checked before any filter: a threshold would silently leave NaN out.
            for context, logp in (("full history", full), ("memory", memory)):
                if not bool(torch.isfinite(logp[answer]).all()):
                    raise FloatingPointError(
                        f"the memory reward of {trajectory.name}, round {scored.number} is not "
                        f"finite: the policy's logits after the {context} hold NaN or infinity"
                    )
            kept_full = _kept(full, answer, threshold)
            kept_memory = kept_full if config.mask == "full" else _kept(memory, answer, threshold)
            p_full = float(_mean_probability(full, answer, kept_full, config.empty))
            p_memory = float(_mean_probability(memory, answer, kept_memory, config.empty))
            count = float(answer.sum())
            shares = float(kept_full.sum()) / count, float(kept_memory.sum()) / count
            if best is None or p_full > best[0]:
                best = (p_full, p_memory, *shares)
        assert best is not None
        scored.p_full, scored.p_mem, scored.kept_full, scored.kept_mem = best
        scored.memory_reward = best[1] - best[0]


def _memory_context(
    trajectory: Trajectory, scored: Round
) -> tuple[TokenSequence, int, tuple[int, ...]]:
    """The memory context of a round as the first tokens of a sequence and the tokens after them.

    Every sequence of a trajectory begins with the prompt. In memory-context rollouts the sequence
    of the next round goes on with this round, so that it holds the whole context.
    """
    assert scored.memory_span is not None
    sequence, prompt = trajectory.sequences[scored.sequence], trajectory.prompt_length
    memory = tuple(sequence.ids[scored.start : scored.memory_span[1]])
    if scored.sequence + 1 < len(trajectory.sequences):
        following = trajectory.sequences[scored.sequence + 1]
        if tuple(following.ids[prompt : prompt + len(memory)]) == memory:
            return following, prompt + len(memory) - 1, memory[-1:]
    return sequence, prompt, memory


def _padded_logprobs(model: Any, rows: list[_Row]) -> list[Tensor]:
    """Left-pads the rows and scores the texts at their ends."""
    device = next(model.parameters()).device
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)  # (B, T)
    attention = torch.zeros_like(ids)
    wanted = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row.ids)
        attention[index, width - len(row) :] = 1
        wanted[index, width - len(row.text.ids) :] = True
    logprobs = token_logprobs(
        model, WantedTokens(ids.to(device), attention.to(device), wanted.to(device))
    ).logprobs.cpu()
    return [logprobs[index, width - len(row.text.ids) :] for index, row in enumerate(rows)]


def _empty_forward(model: Any) -> None:
    """Keeps step with ranks that have more batches."""
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
