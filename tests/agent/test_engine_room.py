"""What a plan says of the engine's contexts, worked out by hand (around the method)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.agent.context_room import needed_context
from mempo.command.cli import compose
from mempo.command.plan import make_plan

LARGE = ["model=qwen2_5_14b", "trainer=fsdp2"]
# Qwen2.5-14B: 48 layers of 8 heads for keys and values, 128 wide, 2 bytes.
TOKEN = 2 * 48 * 8 * 128 * 2
# Of 0.4 of 80 GiB: weights, a step of 8,192 tokens with its products (13,824 and 5,120 wide),
# logits of 128 sequences (152,064 words) twice, and 1.25 GiB of graphs.
STEP = 8192 * (2 * 13824 + 4 * 5120) * 2
LOGITS = 128 * 152064 * 4 * 2
LEFT = 34_359_738_368 - 29_540_067_328 - STEP - LOGITS - 1_342_177_280


def test_contexts_that_nothing_bounds_are_as_long_as_fits() -> None:
    plan = make_plan(compose("train", LARGE), 8)
    assert plan.fits
    assert plan.context == LEFT // TOKEN == 12_884
    assert "Contexts end at 12,884 tokens" in plan.advice
    assert "would allow 32,768" in plan.advice


def test_contexts_that_limits_bound_fit_whole() -> None:
    short = [*LARGE, "evaluation.enabled=false", "rollout.max_response_tokens=2000"]
    config = compose("train", short)
    plan = make_plan(config, 8)
    assert plan.fits
    assert plan.context == needed_context(config, None) < 4000
    assert "Contexts end" not in plan.advice


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["engine.max_model_len=20000"],
            "Raise engine.gpu_memory_utilization, or lower engine.max_model_len: keys and values "
            "of one context of 20,000 tokens take 3.66 GiB of each card, and the engine has 2.36 "
            "GiB for them.",
        ),
        (
            ["engine.max_model_len=20000", "engine.gpu_kv_cache_gib=1"],
            "Raise engine.gpu_kv_cache_gib, or lower engine.max_model_len: keys and values of one "
            "context of 20,000 tokens take 3.66 GiB of each card, and the engine has 1.00 GiB",
        ),
        (
            ["evaluation.enabled=false", "rollout.max_response_tokens=20000"],
            "or lower rollout.max_response_tokens and evaluation.max_response_tokens",
        ),
    ],
)
def test_what_vllm_would_refuse_does_not_fit(settings: list[str], words: str) -> None:
    plan = make_plan(compose("train", [*LARGE, *settings]), 8)
    assert not plan.fits
    assert words in plan.advice


def test_an_engine_in_two_parts_holds_half_of_each_tokens_keys_on_each() -> None:
    settings = [*LARGE, "engine.max_model_len=20000", "engine.tensor_parallel=2"]
    assert make_plan(compose("train", settings), 8).context == 20_000


def test_no_context_is_planned_for_a_cpu() -> None:
    assert make_plan(compose("train", ["trainer=cpu"]), 1).context is None


def test_without_a_tokenizer_the_instructions_have_a_token_for_two_characters(
    tmp_path: Path,
) -> None:
    """More than any tokenizer takes for words and tags alike: most have one for four."""
    path = tmp_path / "prompt.txt"
    path.write_text("x" * 901 + "{{ question }}")
    settings = [f"model.prompt_template={path}", "data.objectives=3", "evaluation.enabled=false"]
    config = compose("train", [*settings, "rollout.max_response_tokens=1000"])
    rounds = 8 * config.rollout.max_rounds
    assert needed_context(config, None) == 451 + 512 + 3 * 128 + 1000 + rounds
