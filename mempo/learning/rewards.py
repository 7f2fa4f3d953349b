"""Answer metrics and the outcome reward (specification section 5).

Pure functions of text: no signals, no evaluation of text, safe in any thread.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from mempo.trajectory import Task

Golds = Sequence[str | None] | None
"""The accepted answers of one objective. ``None`` and blank entries never match anything."""

_REMOVE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACE_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_DIGITS = re.compile(r"\d+")
_NO_CHARACTERS = frozenset("0123456789\uff0c\u3002 ,.-")
_BOOLEANS = {"True": "yes", "False": "no"}


def exact_match(prediction: str | None, golds: Golds) -> float:
    """1.0 if the normalized prediction equals any normalized gold, else 0.0.

    Normalization: lower case, ASCII punctuation removed, the words a, an, the removed, white space
    squeezed. Where it leaves nothing of a text that is not blank, articles stay (``(A)`` and ``A``
    are equal), and where that leaves nothing (``!!!``), the lower-cased text itself is compared.
    No answer, no gold and a blank gold give 0.0.
    """
    return _best(
        prediction,
        golds,
        _equal_words,
    )


def f1(prediction: str | None, golds: Golds) -> float:
    """Token F1 over multisets after the normalization of ``exact_match``, best over the golds.

    If either side is yes, no or noanswer and they differ, 0.0.
    """
    return _best(prediction, golds, _multiset_f1)


def f1_set(prediction: str | None, golds: Golds) -> float:
    """Token F1 over sets, the variant of ASearcher and MEM1, best over the golds.

    Punctuation becomes a space, articles stay, and a text that is ``True`` or ``False`` is read as
    yes or no. Against a gold with Chinese characters both texts are sets of their characters, with
    every number whole, as ASearcher counts.
    """
    return _best(prediction, golds, _set_f1)


METRICS: Mapping[str, Callable[[str | None, Golds], float]] = {
    "exact_match": exact_match,
    "f1": f1,
    "f1_set": f1_set,
}


def split_answer(answer: str | None, objectives: int) -> tuple[list[str | None], int]:
    """An answer's part for each objective, and how many parts it has beyond them.

    Several objectives: the answer is split at ``;``, parts are stripped, an empty part keeps its
    place as ``""``, a missing part is ``None``. A single objective gets the whole answer: its gold
    may hold a semicolon. Raises ``ValueError`` for fewer than one objective.
    """
    if objectives < 1:
        raise ValueError(f"{objectives} objectives: a task has at least one")
    if answer is None:
        return [None] * objectives, 0
    found = [part.strip() for part in answer.split(";")] if objectives > 1 else [answer.strip()]
    missing = max(objectives - len(found), 0)
    return [*found[:objectives], *[None] * missing], max(len(found) - objectives, 0)


def score_answer(answer: str | None, task: Task) -> dict[str, float]:
    """All metrics of one trajectory's answer (specification section 5).

    ``answer`` is the argument of the last round's answer action, ``None`` without one. Part i is
    judged against objective i. Keys: ``exact_match``, ``f1``, ``f1_set`` (means over the
    objectives), each with ``_sum`` (the sum over the objectives), ``extra_parts``, and
    ``missing_parts`` (objectives whose part is missing or blank). MEM1 sums likewise, but its
    released code gives 0 where the number of parts is not that of the objectives; here a missing
    part costs itself only.
    """
    parts, extra = split_answer(answer, len(task.objectives))
    scores: dict[str, float] = {}
    for name, metric in METRICS.items():
        total = sum(
            metric(part, objective.golds)
            for part, objective in zip(parts, task.objectives, strict=True)
        )
        scores[name] = total / len(parts)
        scores[f"{name}_sum"] = total
    scores["extra_parts"] = float(extra)
    scores["missing_parts"] = float(sum(not part for part in parts))
    return scores


def outcome_reward(
    metrics: Mapping[str, float], format_valid: bool, metric: str | Mapping[str, float]
) -> float:
    """``metric * format``: ``metrics[metric]`` for a valid format, 0.0 for a broken one.

    ``metrics`` comes from ``score_answer``, with what ``mempo.judging`` adds; ``metric`` is the
    setting ``reward.metric``, or ``reward.terms``: the sum of these metrics by their weights.
    Raises ``ValueError`` for a metric that was not scored.
    """
    weights = {metric: 1.0} if isinstance(metric, str) else metric
    for name in weights:
        if name not in metrics:
            raise ValueError(f"reward.metric={name} was not scored; there are {sorted(metrics)}")
    total = math.fsum(weight * metrics[name] for name, weight in weights.items())
    return total if format_valid else 0.0


def _best(prediction: str | None, golds: Golds, compare: Callable[[str, str], float]) -> float:
    """The best comparison over the golds that say something; 0.0 where either side is silent.

    A blank prediction shares no word with such a gold, so every comparison gives it 0.0.
    """
    if prediction is None:
        return 0.0
    accepted = [golds] if isinstance(golds, str) else golds or []
    return max(
        (compare(prediction, gold) for gold in accepted if gold and gold.strip()), default=0.0
    )


def _equal_words(prediction: str, gold: str) -> float:
    return float(normalized_words(prediction) == normalized_words(gold))


def normalized_words(text: str) -> list[str]:
    """The words that ``exact_match`` and ``f1`` compare."""
    lowered = text.lower()
    plain = lowered.translate(_REMOVE_PUNCTUATION)
    return _ARTICLES.sub(" ", plain).split() or plain.split() or lowered.split()


def _multiset_f1(prediction: str, gold: str) -> float:
    left, right = normalized_words(prediction), normalized_words(gold)
    if left != right and any(len(w) == 1 and w[0] in _CLOSED_ANSWERS for w in (left, right)):
        return 0.0
    return _f1((Counter(left) & Counter(right)).total(), len(left), len(right))


def _set_f1(prediction: str, gold: str) -> float:
    parts = _character_set if _CHINESE.search(gold) else _word_set
    left, right = parts(prediction), parts(gold)
    return _f1(len(left & right), len(left), len(right))


def _word_set(text: str) -> set[str]:
    lowered = _lowered(text)
    return set(lowered.translate(_SPACE_PUNCTUATION).split() or lowered.split())


def _character_set(text: str) -> set[str]:
    plain = " ".join(_lowered(text).translate(_SPACE_PUNCTUATION).split())
    return (set(plain) - _NO_CHARACTERS).union(_DIGITS.findall(plain))


def _lowered(text: str) -> str:
    stripped = text.strip()
    return _BOOLEANS.get(stripped, stripped).lower()


def _f1(shared: int, predicted: int, expected: int) -> float:
    """The harmonic mean of precision and recall: 2 · shared / (predicted + expected)."""
    return 2.0 * shared / (predicted + expected)
