"""``dry_run=measured``: what torch's trackers count, against tensors counted by hand (around the
method)."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mempo.command.cli import compose
from mempo.command.planning.measured import Measured, measure_each
from mempo.command.planning.passes import LOGIT_CHUNK_ELEMENTS
from mempo.command.planning.subject import Subject, subject_of
from mempo.config import LoraSettings
from mempo.learning.pass_sizes import CPU_LOGITS, GPU_LOGITS
from mempo.runtime.errors import ConfigError, MempoError
from tests.support.programs import run_program

TOKENS = 1000
HIDDEN, INNER, KEY_VALUE, HEADS, WORDS = 128, 320, 64, 4, 500
LAYER = (
    2 * HIDDEN * (HIDDEN + KEY_VALUE)  # queries and output, keys and values
    + HIDDEN
    + 2 * KEY_VALUE  # their biases
    + 3 * HIDDEN * INNER
    + 2 * HIDDEN  # norms
)
SIZES = (
    f"hidden_size={HIDDEN}",
    f"intermediate_size={INNER}",
    f"num_attention_heads={HEADS}",
    f"num_key_value_heads={HEADS * KEY_VALUE // HIDDEN}",
    f"vocab_size={WORDS}",
)


def subject(*overrides: str, layers: int = 2, devices: int = 1) -> Subject:
    sizes = [f"model.architecture.{one}" for one in (*SIZES, f"num_hidden_layers={layers}")]
    settings = [f"optimizer.micro_batch_tokens={TOKENS}", "model.dtype=bfloat16"]
    return subject_of(compose("train", [*sizes, *settings, *overrides]), devices)


def parameters(layers: int) -> int:
    return WORDS * HIDDEN + layers * LAYER + HIDDEN


SUBJECTS = {
    "alone": subject(),
    "a third layer": subject(layers=3),
    "ddp": subject("trainer=ddp", devices=8),
    "fsdp2": subject("trainer=fsdp2", devices=8),
    "adapters": subject("lora=default", "model.lora.rank=2"),
    "reduced once": subject("trainer=fsdp2", "trainer.sharding.reduce_once=true", devices=8),
    "a reference": subject("loss.kl_coefficient=0.1"),
}

Found = dict[str, Measured]


@pytest.fixture(scope="module")
def found() -> Found:
    return dict(zip(SUBJECTS, measure_each(list(SUBJECTS.values())), strict=True))


def test_states_are_counted_to_the_byte(found: Found) -> None:
    """Weights, gradients and two moments in float32; a frozen copy in bfloat16."""
    count, alone = parameters(2), found["alone"]
    parts = alone.parts()
    assert found["a reference"].total == alone.total + 2 * count
    assert parts["weights"] == parts["gradients"] == 4 * count
    assert parts["AdamW moments"] == 8 * count
    assert sum(parts.values()) == alone.total == sum(alone.categories.values())


def test_a_layer_keeps_what_its_formulas_need(found: Found) -> None:
    """A third layer: states, its weights in bfloat16, and of each token under autocast (the stream
    between layers is float32): of both norms their input and what it is scaled to in float32; in
    bfloat16 the inputs of seven matrix products, one shared with attention's output, then queries,
    keys, values, gate, its activation and the other branch; of attention one sum a head."""
    token = (
        2 * 2 * 4 * HIDDEN
        + 2 * (5 * HIDDEN + HIDDEN + INNER)  # inputs: q, k, v, gate, up; output; down
        + 2 * (HIDDEN + 2 * KEY_VALUE + 3 * INNER)
        + 4 * HEADS
        + 2 * 4  # a mean a norm
    )
    grown, before = (found[name].parts()["the pass itself"] for name in ("a third layer", "alone"))
    weights = 2 * (2 * HIDDEN * (HIDDEN + KEY_VALUE) + 3 * HIDDEN * INNER)
    biases = 2 * (HIDDEN + 2 * KEY_VALUE)
    assert grown - before == token * TOKENS + weights + biases


def test_ddp_holds_gradients_twice_and_shards_are_an_eighth(found: Found) -> None:
    """Autograd's own until a step's last micro-batch, and the buckets that they are summed in."""
    several, sharded = found["ddp"], found["fsdp2"]
    assert several.categories["DDP buckets"] == 4 * parameters(2)
    assert several.total == found["alone"].total + 4 * parameters(2)
    # What 8 does not divide is filled up: the vectors of 128 and 64 do, 500 words of 128 do not.
    words = -(-WORDS // 8) * HIDDEN
    held = words + 2 * LAYER // 8 + HIDDEN // 8
    assert sharded.parts()["weights"] == 4 * held
    assert sharded.parts()["AdamW moments"] == 8 * held
    # In place of an eighth, all gradients whole, which are no shards to the tracker.
    once = found["reduced once"]
    assert once.total - sharded.total > 4 * parameters(2) * 3 // 4


def test_adapters_alone_have_gradients(found: Found) -> None:
    assert SUBJECTS["adapters"].lora == LoraSettings(rank=2)
    parts = found["adapters"].parts()
    widths = 2 * (HIDDEN + HIDDEN) + 2 * (HIDDEN + KEY_VALUE) + 3 * (HIDDEN + INNER)
    adapters = 2 * 2 * widths
    assert parts["gradients"] == 4 * adapters
    assert parts["AdamW moments"] == 8 * adapters
    assert parts["weights"] == 2 * parameters(2) + 4 * adapters


def test_what_is_measured_is_the_configured_update() -> None:
    assert subject().logit_elements == LOGIT_CHUNK_ELEMENTS == GPU_LOGITS
    assert subject("trainer=cpu").logit_elements == CPU_LOGITS
    assert subject("loss.entropy_coefficient=0.1").entropy == "trained"
    assert subject("loss.kl_coefficient=0.1").reference
    assert not subject("loss.kl_coefficient=0.1", "lora=default").reference


def test_what_cannot_be_measured_is_told() -> None:
    config = compose("train", ["model=smollm2_135m", "model.architecture=null"])
    with pytest.raises(ConfigError, match=r"dry_run=measured builds the model from one of them"):
        subject_of(config, 1)
    odd = dataclasses.replace(subject(), architecture=None, path="no/such folder")
    with pytest.raises(MempoError, match=r"dry_run=measured cannot follow this model"):
        measure_each([odd])
    assert not torch.distributed.is_initialized()


def test_the_command_prints_both(tmp_path: object) -> None:
    sizes = [f"model.architecture.{one}" for one in SIZES]
    said = run_program("train.py", *sizes, "dry_run=measured", f"run_dir={tmp_path}/run")
    assert "Measured: an update on one device" in said
    assert "the pass itself" in said
