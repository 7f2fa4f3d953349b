"""Answer metrics and the outcome reward (specification section 5)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mempo.agent.protocol import parse_round
from mempo.learning.rewards import (
    exact_match,
    f1,
    f1_set,
    outcome_reward,
    score_answer,
    split_answer,
)
from mempo.trajectory import Objective, Task
from tests.support.cases_path import load_cases

ALL = (exact_match, f1, f1_set)


def task(*golds: str | tuple[str, ...]) -> Task:
    """A task with one objective per gold (or tuple of aliases)."""
    aliases = [(gold,) if isinstance(gold, str) else gold for gold in golds]
    return Task("t", tuple(Objective(f"q{i}", names) for i, names in enumerate(aliases)))


@pytest.mark.parametrize(
    "case", load_cases("answer_metrics.json"), ids=lambda c: str(c["prediction"])
)
def test_cases(case: dict[str, Any]) -> None:
    prediction, golds = case["prediction"], case["golds"]
    assert exact_match(prediction, golds) == case["em"]
    assert f1(prediction, golds) == pytest.approx(case["f1"], abs=1e-6)
    assert f1_set(prediction, golds) == pytest.approx(case["f1_set"], abs=1e-6)


@pytest.mark.parametrize("article", ["a", "an", "the", "An"])
def test_each_article_is_removed(article: str) -> None:
    assert exact_match(f"{article} old owl", ["old owl"]) == 1.0
    assert exact_match(f"old {article} owl", ["old owl"]) == 1.0
    # Within a word it is none, and of sets it is a word like any other.
    assert exact_match(f"{article}x old owl", ["old owl"]) == 0.0
    assert f1_set(f"{article} old owl", ["old owl"]) == pytest.approx(0.8)


@pytest.mark.parametrize("prediction", [None, "", "  \n", "Paris"])
@pytest.mark.parametrize("golds", ["", [], None, [""], [None], [" "], ["", None]])
def test_verl_omni_643_visual_rft_176_nothing_never_equals_nothing(
    prediction: str | None, golds: list[str | None] | None
) -> None:
    assert [metric(prediction, golds) for metric in ALL] == [0.0, 0.0, 0.0]


def test_uni_agent_183_empty_gold_list() -> None:
    assert score_answer("Paris", task(()))["exact_match"] == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "token_f1", "set_f1"),
    [
        ("A", "A", 1.0, 1.0, 1.0),
        ("!!!", "!!!", 1.0, 1.0, 1.0),
        ("a", "A", 1.0, 1.0, 1.0),
        ("the", "A", 0.0, 0.0, 0.0),
        ("(A)", "A", 1.0, 1.0, 1.0),
        ("A.", "(a)", 1.0, 1.0, 1.0),
        ("The!", "A", 0.0, 0.0, 0.0),
        ("...", "!!!", 0.0, 0.0, 0.0),
        ("Paris", "!!!", 0.0, 0.0, 0.0),
        # "the A" falls back to {the, a}: 2 · 1 / (2 + 1)
        ("the A", "A", 0.0, 2 / 3, 2 / 3),
    ],
)
def test_helm_4315_trace_4_gold_of_articles_or_punctuation(
    prediction: str, gold: str, em: float, token_f1: float, set_f1: float
) -> None:
    assert exact_match(prediction, [gold]) == em
    assert f1(prediction, [gold]) == pytest.approx(token_f1, abs=1e-12)
    assert f1_set(prediction, [gold]) == pytest.approx(set_f1, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "gold", "token_f1", "set_f1"),
    [
        ("red red blue", "red blue blue", 2 / 3, 1.0),  # 2 · 2 / (3 + 3)
        ("red red", "red red red", 4 / 5, 1.0),  # 2 · 2 / (2 + 3)
        ("noanswer", "noanswer", 1.0, 1.0),
        ("noanswer here", "noanswer", 0.0, 2 / 3),
        ("Yes.", "yes", 1.0, 1.0),
        ("True Grit", "yes Grit", 2 / 4, 2 / 4),  # only a whole text is read as yes
        ("False", "no", 0.0, 1.0),
        ("false", "no", 0.0, 0.0),
        ("theatre", "the atre", 0.0, 0.0),
    ],
)
def test_f1_by_hand(prediction: str, gold: str, token_f1: float, set_f1: float) -> None:
    assert f1(prediction, [gold]) == pytest.approx(token_f1, abs=1e-12)
    assert f1_set(prediction, [gold]) == pytest.approx(set_f1, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "gold", "value"),
    [
        ("肖亮教授", "肖亮", 2 / 3),  # 2 · 2 / (4 + 2)
        ("肖亮", "肖亮教授", 2 / 3),
        ("肖 亮。", "肖亮", 1.0),
        ("亮亮", "亮", 1.0),  # sets
        ("1998年", "1998年5月", 2 * 2 / (2 + 4)),  # {年, 1998} and {年, 月, 1998, 5}
        ("1997年", "1998年", 2 * 1 / (2 + 2)),
        ("Apple公司", "apple 公司", 1.0),  # {a, p, l, e, 公, 司}
        ("Liang", "肖亮", 0.0),
        ("。", "肖亮", 0.0),
        ("Xiao 肖亮", "Xiao", 2 / 3),  # the gold decides: words
        ("\u3400\uf900", "\u3400", 2 / 3),  # rare and compatibility characters
    ],
)
def test_set_f1_of_chinese_compares_characters(prediction: str, gold: str, value: float) -> None:
    assert f1_set(prediction, [gold]) == pytest.approx(value, abs=1e-12)


def test_a_sum_counts_the_parts_that_are_there() -> None:
    """MEM1's released code gives 0 here; specification section 5 does not."""
    scores = score_answer("Paris", task("Paris", "Rome"))
    assert [scores[f"{name}_sum"] for name in ("exact_match", "f1", "f1_set")] == [1.0, 1.0, 1.0]
    assert scores["missing_parts"] == 1.0


def test_best_over_golds() -> None:
    assert f1("new york city", ["york", None, "new york"]) == pytest.approx(4 / 5, abs=1e-12)
    assert f1("new york city", "new york") == pytest.approx(4 / 5, abs=1e-12)


@pytest.mark.parametrize(
    ("answer", "objectives", "parts", "extra"),
    [
        ("a;;c", 3, ["a", "", "c"], 0),
        (" a ;b ", 2, ["a", "b"], 0),
        ("a", 3, ["a", None, None], 0),
        ("a;b;c;d", 2, ["a", "b"], 2),
        ("", 2, ["", None], 0),
        (None, 2, [None, None], 0),
        ("a; b", 1, ["a; b"], 0),
        (None, 1, [None], 0),
    ],
)
def test_split_answer(
    answer: str | None, objectives: int, parts: list[str | None], extra: int
) -> None:
    assert split_answer(answer, objectives) == (parts, extra)


def test_split_answer_refuses_a_task_without_objectives() -> None:
    with pytest.raises(ValueError, match="at least one"):
        split_answer("a", 0)


def test_open_instruct_729_missing_middle_answer_shifts_nothing() -> None:
    scores = score_answer("a1;;c3", task("a1", "b2", "c3"))
    assert scores["exact_match"] == pytest.approx(2 / 3, abs=1e-12)
    assert scores["exact_match_sum"] == 2.0
    assert (scores["missing_parts"], scores["extra_parts"]) == (1.0, 0.0)
    assert score_answer("a1;c3", task("a1", "b2", "c3"))["exact_match_sum"] == 1.0


def test_mem1_unfinished_trajectory_of_three_objectives() -> None:
    scores = score_answer(None, task("a", "b", "c"))
    metrics = ("exact_match", "f1", "f1_set")
    expected = dict.fromkeys([*metrics, *(f"{name}_sum" for name in metrics)], 0.0)
    assert scores == {**expected, "extra_parts": 0.0, "missing_parts": 3.0}


def test_extra_parts_are_ignored_but_counted() -> None:
    scores = score_answer("Paris; Rome; Oslo", task("Paris", ("Roma", "Rome")))
    assert (scores["exact_match"], scores["f1_sum"], scores["extra_parts"]) == (1.0, 2.0, 1.0)


@pytest.mark.parametrize("tags_in_prompt", [0, 1, 5])
def test_verl_6392_search_r1_79_only_the_models_own_answer_counts(tags_in_prompt: int) -> None:
    """The reward takes the action's argument; a prompt or an observation never reaches it."""
    prompt = "<answer>Paris</answer>" * tags_in_prompt
    silent = parse_round("", 1)
    assert prompt.count("<answer>") == tags_in_prompt
    assert score_answer(silent.argument, task("Paris"))["exact_match"] == 0.0


def test_verl_6542_no_answer_is_evaluated() -> None:
    assert exact_match("__import__('os')._exit(1)", ["1"]) == 0.0


def test_verl_5635_rewards_in_worker_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda _: score_answer("Paris", task("Paris"))["f1"], range(64)))
    assert scores == [1.0] * 64


def test_rllm_382_unanswered_trajectories_stay_in_the_mean() -> None:
    answers = ["Paris"] * 6 + [None] * 2
    scores = [score_answer(answer, task("Paris"))["exact_match"] for answer in answers]
    assert sum(scores) / len(scores) == 0.75


def test_outcome_reward_is_metric_times_format() -> None:
    metrics = {"exact_match": 0.5, "f1": 0.75}
    assert outcome_reward(metrics, True, "exact_match") == 0.5
    assert outcome_reward(metrics, True, "f1") == 0.75
    assert outcome_reward(metrics, False, "f1") == 0.0
    with pytest.raises(ValueError, match=r"reward\.metric=bleu"):
        outcome_reward(metrics, True, "bleu")
