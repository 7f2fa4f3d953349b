"""The plan's memory of an update against torch's trackers, for models of conf/model/ (around the
method)."""

from __future__ import annotations

import os

import pytest

from mempo.command.cli import compose
from mempo.command.memory_estimate import estimate_memory
from mempo.command.planning.measured import measure_each
from mempo.command.planning.subject import subject_of
from mempo.config import Config

WITHIN = 0.1

Case = tuple[str, int, str]

FEW: list[Case] = [
    ("qwen2_5_7b", 8, "trainer=fsdp2"),
    ("qwen2_5_7b", 4, "trainer=fsdp2 lora=default model.gradient_checkpointing=false"),
    ("qwen2_5_0_5b", 2, "trainer=ddp model.gradient_checkpointing=false"),
    ("qwen2_5_0_5b", 1, "lora=default"),
    ("qwen2_5_32b", 8, "trainer=ddp"),
]
"""One core takes half a minute for these, and three and a half for ``ALL`` (``make plans``)."""

ALL: list[Case] = [
    ("qwen2_5_0_5b", 8, "trainer=fsdp2"),
    ("qwen2_5_0_5b", 8, "trainer=fsdp2 model.gradient_checkpointing=false"),
    ("qwen2_5_0_5b", 8, "trainer=fsdp2 trainer.sharding.reduce_once=true"),
    ("qwen2_5_0_5b", 8, "trainer=fsdp2 lora=default"),
    ("qwen2_5_0_5b", 2, "trainer=ddp"),
    ("qwen2_5_0_5b", 1, "model.gradient_checkpointing=selective"),
    ("qwen2_5_0_5b", 1, "lora=default model.gradient_checkpointing=selective"),
    ("qwen2_5_0_5b", 1, "lora=default model.gradient_checkpointing=false"),
    ("smollm2_135m", 1, ""),
    ("smollm2_135m", 1, "lora=default model.gradient_checkpointing=true"),
    ("smollm2_135m", 1, "trainer=cpu"),
    ("qwen2_5_7b", 8, "trainer=fsdp2 model.gradient_checkpointing=false"),
    ("qwen2_5_7b", 8, "trainer=fsdp2 model.gradient_checkpointing=selective"),
    ("qwen2_5_7b", 8, "trainer=fsdp2 optimizer.micro_batch_tokens=1024"),
    ("qwen2_5_7b", 8, "trainer=fsdp2 algorithm=mempo_paper"),
    ("qwen2_5_7b", 4, "trainer=fsdp2 lora=default"),
    ("qwen2_5_7b", 8, "trainer=ddp"),
    ("qwen2_5_7b", 1, "lora=default"),
    ("qwen2_5_7b", 1, "lora=default model.gradient_checkpointing=false"),
    ("qwen2_5_32b", 32, "trainer=fsdp2"),
    ("qwen2_5_32b", 32, "trainer=fsdp2 model.gradient_checkpointing=false"),
    ("qwen2_5_32b", 8, "trainer=fsdp2 lora=default"),
    ("qwen2_5_32b", 8, "trainer=fsdp2 lora=default model.gradient_checkpointing=false"),
    ("qwen2_5_32b", 1, "lora=default"),
]


def composed(case: Case) -> Config:
    return compose("train", [f"model={case[0]}", *case[2].split()])


def differences(cases: list[Case]) -> dict[Case, float]:
    """Of each case's whole memory: the plan's over the tracker's, less 1."""
    found = {}
    subjects = [subject_of(composed(case), case[1]) for case in cases]
    for case, measured in zip(cases, measure_each(subjects), strict=True):
        config = composed(case)
        assert config.model.architecture is not None
        planned = estimate_memory(config, config.model.architecture, case[1])
        found[case] = planned.training / measured.total - 1
    return found


@pytest.mark.slow
def test_the_plan_is_within_a_tenth_of_the_trackers() -> None:
    found = differences(FEW)
    assert {case: far for case, far in found.items() if abs(far) > WITHIN} == {}


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("MEMPO_PLANS") != "all", reason="make plans runs it")
@pytest.mark.parametrize("model", sorted({case[0] for case in ALL}))
def test_the_plan_is_within_a_tenth_of_the_trackers_everywhere(model: str) -> None:
    found = differences([case for case in ALL if case[0] == model])
    print({" ".join(map(str, case)): f"{far:+.1%}" for case, far in found.items()})
    assert {case: far for case, far in found.items() if abs(far) > WITHIN} == {}
