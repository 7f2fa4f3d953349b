"""Which weights a sync did not bring (specification section 10), by names and by digests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from mempo.config import EngineConfig
from mempo.engine.sync_proof import Delivery, undelivered
from mempo.engine.vllm_engine import Engine, EngineError
from mempo.models.tiny import build_tiny_model, train_tokenizer
from tests.engine.test_vllm_engine import ARCHITECTURE, TEXTS
from tests.support.engine_truth import assert_engine_agrees

PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
ZERO, ONE = torch.zeros(2), torch.ones(2)
LAYER = "tp0:model.layers.0.attn.qkv_proj.weight"


def delivery(*weights: tuple[str, torch.Tensor]) -> Delivery:
    passed = Delivery(weights, look=True)
    assert [name for name, _ in passed] == [name for name, _ in weights]
    return passed


def parts(*values: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    names = (f"model.layers.0.attn.{part}.weight" for part in PACKED["qkv_proj"])
    return list(zip(names, values, strict=False))


def test_a_packed_layer_needs_all_of_its_parts() -> None:
    zeroed, loaded = {LAYER: "zero"}, {LAYER: "something"}
    assert undelivered(zeroed, loaded, delivery(*parts(ONE, ONE, ONE)), PACKED) == []
    found = undelivered(zeroed, loaded, delivery(*parts(ONE, ONE)), PACKED)
    assert found == ["layers.0.attn.v_proj.weight"]


def test_a_layer_that_files_hold_in_one_as_well_is_its_own() -> None:
    """GLM's ``gate_up_proj``."""
    zeroed, loaded = {LAYER: "zero"}, {LAYER: "something"}
    whole = delivery(("model.layers.0.attn.qkv_proj.weight", ONE))
    assert undelivered(zeroed, loaded, whole, PACKED) == []
    assert undelivered(zeroed, zeroed, whole, PACKED) == ["layers.0.attn.qkv_proj.weight"]


def test_a_weight_that_the_engine_calls_otherwise_has_come() -> None:
    """GPT-NeoX's output layer; what only packs a layer is no other name."""
    before, after = {"lm_head.weight": "zero"}, {"lm_head.weight": "one"}
    known = [("model.norm.weight", ONE), ("model.embed.weight", ONE)]
    before |= {name: "zero" for name, _ in known}
    after |= {name: "one" for name, _ in known}
    came = delivery(*known, ("embed_out.weight", ONE))
    assert undelivered(before, after, came, {}) == ["lm_head.weight"]
    came.rename(lambda name: "lm_head.weight" if name == "embed_out.weight" else None)
    assert undelivered(before, after, came, {}) == []


def test_what_stays_zero_must_have_been_zero() -> None:
    untouched = {LAYER: "zero"}
    assert undelivered(untouched, untouched, delivery(*parts(ZERO, ZERO, ZERO)), PACKED) == []
    found = undelivered(untouched, untouched, delivery(*parts(ZERO, ONE, ZERO)), PACKED)
    assert found == ["layers.0.attn.k_proj.weight"]  # it came, and did not arrive


def test_other_names_are_proven_by_their_digests_alone() -> None:
    weights = delivery(("transformer.h.0.c_attn.weight", ONE), ("transformer.wte.weight", ONE))
    before = {"blocks.0.qkv.weight": "zero", "embedding.weight": "zero"}
    after = {"blocks.0.qkv.weight": "one", "embedding.weight": "two"}
    assert undelivered(before, after, weights, {}) == []
    after["embedding.weight"] = "zero"
    assert undelivered(before, after, weights, {}) == ["embedding.weight"]


def test_nothing_is_never_enough() -> None:
    assert undelivered({LAYER: "zero"}, {LAYER: "zero"}, delivery(), {}) == [
        "layers.0.attn.qkv_proj.weight"
    ]


@pytest.mark.slow
def test_vllm_52689_a_sync_that_lacks_a_weight_stops_the_run_by_name(
    tmp_path: Path,
) -> None:
    tokenizer = train_tokenizer(TEXTS, ARCHITECTURE.vocab_size)
    build_tiny_model(ARCHITECTURE, tokenizer, seed=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    weights = [(name, value.detach()) for name, value in model.named_parameters()]
    assert not model.get_parameter("model.layers.0.self_attn.q_proj.bias").any()  # a true zero
    engine = Engine(str(tmp_path), EngineConfig(max_num_seqs=8))
    try:
        for withheld, count in (
            ("", 26),  # everything: embedding, norm, and of each of two blocks 9 weights, 3 biases
            ("model.layers.1.", 12),
            ("model.layers.0.self_attn.k_proj.weight", 1),  # a part of a packed layer
            ("model.layers.0.self_attn.k_proj.bias", 1),  # of a parameter that is zero
            ("model.layers.1.mlp.down_proj.weight", 1),
            ("model.norm.weight", 1),
        ):
            rest = [one for one in weights if not one[0].startswith(withheld)]
            words = f"{count} weights are missing.*{withheld.removeprefix('model.')}"
            with pytest.raises(EngineError, match=words):
                engine.sync(rest)
        engine.sync(weights)
        assert_engine_agrees(engine, model, 1.0)
        with pytest.raises(EngineError, match=r"1 weights are missing.*model\.norm\.weight"):
            engine.sync(weights[:-1])  # by its names; the digests are compared once
    finally:
        engine.close()
