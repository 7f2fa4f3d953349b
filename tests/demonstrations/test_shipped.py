"""The supervised start that comes with the package (around the method)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from mempo.command.cli import compose
from mempo.config import Config
from mempo.demonstrations.shipped import RECORD, SHIPPED, shipped_start, write_record
from mempo.runtime.errors import MempoError


def long(*overrides: str) -> Config:
    return compose("train", ["experiment=long_horizon", *overrides])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder that was shipped for these settings, as far as its record goes."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    write_record(long(), folder, {"command": "python train.py stage=sft"})
    return folder


def test_the_long_horizon_begins_with_it() -> None:
    """Red when a setting of demonstrations or supervised training changes and the start is not made
    anew: then every run would train it, and other figures would stand in the docs."""
    assert shipped_start(long()) == SHIPPED
    record = json.loads((SHIPPED / RECORD).read_text(encoding="utf-8"))
    assert record["command"] == "python train.py experiment=long_horizon stage=sft"
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model: Any = AutoModelForCausalLM.from_pretrained(SHIPPED)
    ids = tokenizer.encode("<mem> Amber founder unknown.</mem>", add_special_tokens=False)
    tokens = ["<mem>", "ĠAmber", "Ġfounder", "Ġunknown", ".", "</mem>"]
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert max(ids) < model.get_input_embeddings().weight.shape[0]


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("seed=7", True),
        ("data.world.seed=5", True),
        ("data.world.heldout_tasks=256", True),
        ("data.objectives=8", True),
        ("algorithm=grpo", True),
        ("lora=default", True),
        ("sft.steps=7", False),
        ("sft.objectives=[1,4]", False),
        ("sft.drop_probability=0.5", False),
        ("sft.memory_form=notes", False),
        ("data.world.passages=400", False),
        ("data.world.max_hops=3", False),
        ("model.architecture.hidden_size=64", False),
        ("sft=default", False),
    ],
)
def test_it_serves_where_it_would_be_trained_just_so(made: Path, override: str, same: bool) -> None:
    assert shipped_start(long(override), made) == (made if same else None)


def test_another_file_than_was_shipped_is_named(made: Path) -> None:
    assert shipped_start(long(), made) == made
    (made / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(MempoError, match=r"model\.safetensors: not the file that was shipped"):
        shipped_start(long(), made)


def test_the_default_run_begins_with_it_and_other_models_do_not(made: Path) -> None:
    assert shipped_start(compose("train", []), made) == made
    assert shipped_start(compose("train", ["experiment=debug"]), made) is None
    assert shipped_start(compose("train", ["model=smollm2_135m"]), made) is None


def test_a_package_without_it_trains_one(tmp_path: Path) -> None:
    assert shipped_start(long(), tmp_path) is None
