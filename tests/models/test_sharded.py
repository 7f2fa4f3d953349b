"""Sharded models start without a whole copy in any process (around the method)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mempo.config import EngineConfig
from mempo.engine.vllm_engine import Engine
from mempo.models.sharded import can_start_empty
from tests.support.engine_truth import assert_engine_agrees
from tests.support.small_tokenizers import make_tokenizer

ROOT = Path(__file__).resolve().parents[2]
IDS = torch.arange(12).reshape(2, 6)
"""As in the programs that the tests start."""


def save_model(folder: Path, *, tied: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    tokenizer = make_tokenizer("tags")
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            tie_word_embeddings=tied,
        )
    )
    # Several files with an index, as large models come.
    model.save_pretrained(folder, max_shard_size="128KB")
    tokenizer.save_pretrained(folder)
    model.eval()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["whole", "lora", "copies"])
def test_two_processes_of_torchrun_read_the_weights_of_a_sharded_model(
    tmp_path: Path, lora: str
) -> None:
    folder = tmp_path / "model"
    model = save_model(folder, tied=False)
    assert (folder / "model.safetensors.index.json").is_file()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(ROOT / "tests" / "programs" / "sharded_loading_run.py")),
            *(str(folder), str(tmp_path), lora),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    saved = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    expected = model(input_ids=IDS).logits
    for part in saved:
        # Adapters start without effect: their B is zero.
        torch.testing.assert_close(part["logits"], expected, atol=1e-6, rtol=0)
    weights = saved[1]["weights"]
    assert weights.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[name], parameter), name
    count = len(list(model.named_parameters()))
    # Seven linear layers a block, two blocks, A and B of each; without adapters, everything.
    assert len(saved[0]["trained"]) == (2 * 7 * 2 if lora == "lora" else count)


def test_models_with_tied_embeddings_are_loaded_whole(tmp_path: Path) -> None:
    save_model(tmp_path / "tied", tied=True)
    save_model(tmp_path / "untied", tied=False)
    assert not can_start_empty(str(tmp_path / "tied"))
    assert can_start_empty(str(tmp_path / "untied"))
    AutoModelForCausalLM.from_pretrained(tmp_path / "untied").save_pretrained(tmp_path / "again")
    for file in (tmp_path / "again").glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    assert not can_start_empty(str(tmp_path / "again"))


PAIRS = [f"{strategy}-{adapter}" for strategy in ("ddp", "fsdp2") for adapter in ("none", "lora")]


def assert_engine_gives(folder: Path, expected: torch.Tensor) -> None:
    """vLLM opens the folder as it is; its log-probabilities of the texts that were scored when the
    folder was saved are those, and what it samples has the saved model's."""
    from vllm import SamplingParams

    engine = Engine(str(folder), EngineConfig(max_num_seqs=8))
    try:
        asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
        prompts: list[Any] = [{"prompt_token_ids": row} for row in IDS.tolist()]
        outputs = engine._llm.generate(prompts, asked, use_tqdm=False)
        for row, output, logits in zip(IDS.tolist(), outputs, expected, strict=True):
            told = zip(row[1:], output.prompt_logprobs[1:], strict=True)  # the first has none
            found = [one[token].logprob for token, one in told]
            right = logits.log_softmax(-1)[torch.arange(len(row) - 1), row[1:]]
            torch.testing.assert_close(torch.tensor(found), right, atol=1e-5, rtol=0)
        saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert_engine_agrees(engine, saved, 1.0)
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_every_pair_of_strategy_and_adapter_saves_what_it_trained(
    tmp_path: Path, tied: bool
) -> None:
    """Opened in transformers, vLLM and, for adapters, peft."""
    start = tmp_path / "start"
    untrained = save_model(start, tied=tied)(input_ids=IDS).logits
    program = ROOT / "tests" / "programs" / "saving_run.py"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(program), str(start), str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for pair in PAIRS:
        folder, lora = tmp_path / pair, pair.endswith("lora")
        expected = torch.load(folder / "logits.pt", weights_only=True)
        saved = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        torch.testing.assert_close(saved(input_ids=IDS).logits, expected, atol=1e-5, rtol=0)
        changed = (expected - untrained).abs().max() > 0.01
        assert bool(changed) == lora
        assert (folder / "adapter").is_dir() == lora
        if lora:
            base = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
            again = PeftModel.from_pretrained(base, folder / "adapter").eval()
            torch.testing.assert_close(again(input_ids=IDS).logits, expected, atol=1e-5, rtol=0)
        assert_engine_gives(folder / "model", expected)
