"""The dry run: parameter counts against public totals, memory against hand-computed values (around
the method)."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mempo.agent.engine_room import GRAPHS
from mempo.command.cli import compose
from mempo.command.memory_estimate import (
    CUDA_BYTES,
    GIB,
    NCCL_BYTES,
    MemoryPerDevice,
    count_parameters,
    estimate_memory,
)
from mempo.command.plan import make_plan, planned_world_size, print_plan
from mempo.command.planning.passes import CPU_LOGIT_CHUNK_ELEMENTS, LOGIT_CHUNK_ELEMENTS
from mempo.command.supervised_plan import SupervisedPlan
from mempo.config import ArchitectureConfig, LoraSettings
from mempo.learning.pass_sizes import CPU_LOGITS, GPU_LOGITS
from mempo.models.lora import add_adapters
from mempo.runtime.errors import ConfigError
from tests.support.families import FAMILIES, write_family

PUBLIC_TOTALS = {
    "smollm2_135m": 134_515_008,
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_14b": 14_770_033_664,
    "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648,
    "llama3_70b": 70_553_706_496,
}


@pytest.mark.parametrize(("model", "total"), PUBLIC_TOTALS.items())
def test_parameter_totals(model: str, total: int) -> None:
    architecture = compose("train", [f"model={model}"]).model.architecture
    assert architecture is not None
    assert count_parameters(architecture).total == total


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_equal_those_of_a_built_model(tied: bool, bias: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    architecture = ArchitectureConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=50,
        tie_word_embeddings=tied,
        attention_bias=bias,
    )
    sizes = dataclasses.asdict(architecture)
    sizes.pop("attention_bias")
    # Qwen2 has the three biases, Llama (without its own attention_bias) none.
    model = (
        Qwen2ForCausalLM(Qwen2Config(**sizes)) if bias else LlamaForCausalLM(LlamaConfig(**sizes))
    )
    assert count_parameters(architecture).total == sum(p.numel() for p in model.parameters())


def memory_of(devices: int, *overrides: str) -> MemoryPerDevice:
    config = compose("train", overrides)
    assert config.model.architecture is not None
    return estimate_memory(config, config.model.architecture, devices)


def test_memory_of_a_bfloat16_model_on_one_device() -> None:
    memory = memory_of(1, "model=qwen2_5_0_5b", "model.gradient_checkpointing=false")
    n = PUBLIC_TOTALS["qwen2_5_0_5b"]
    assert memory.weights == memory.gradients == 4 * n
    assert memory.lower_copies == 2 * n  # the embedding is the output layer, a matrix product
    assert memory.optimizer_states == 8 * n
    assert memory.reference == memory.gathered == memory.buckets == memory.step_copies == 0
    assert memory.engine_weights == 2 * n
    assert memory.engine == int(0.4 * 80 * GIB)
    # A token of a layer under autocast: norms in float32 (input and scaled), seven vectors, keys
    # and values, the feed-forward's four, a sum a head; behind the layers a norm and four vectors.
    layer = 16 * 896 + 2 * (7 * 896 + 2 * 128 + 4 * 4864) + 4 * 14
    assert memory.activations == (24 * layer + (8 + 8) * 896) * 8192
    head = 151936 * 896
    assert memory.moving == 2 * 2 * head  # of this chunk and of those before
    assert memory.logits == 20 * 2**26 - 2 * head
    assert (LOGIT_CHUNK_ELEMENTS, CPU_LOGIT_CHUNK_ELEMENTS) == (GPU_LOGITS, CPU_LOGITS)


def test_gradient_checkpointing_keeps_one_layer_and_every_input() -> None:
    """At the last layer: all inputs (in float32 under autocast), that layer whole, inside its
    feed-forward two gradients of it and two of the stream."""
    memory = memory_of(1, "model=qwen2_5_7b", "optimizer.micro_batch_tokens=20000")
    layer = 16 * 3584 + 2 * (7 * 3584 + 2 * 512 + 4 * 18944) + 4 * 28
    inside = 2 * 2 * 18944 + 2 * 4 * 3584
    assert memory.activations == (28 * 4 * 3584 + layer + inside) * 20000
    assert memory.logits == 0
    assert memory.moving == 2 * 18944 * 3584


def test_selective_checkpointing_keeps_matrix_products_and_attention() -> None:
    """Queries, keys, values, attention and its sums, its projection, gate, other branch, down, and
    the layer's input."""
    settings = ["model=qwen2_5_0_5b", "trainer=fsdp2"]
    with_some = memory_of(8, *settings, "model.gradient_checkpointing=selective")
    with_inputs = memory_of(8, *settings)
    kept = 2 * (896 + 128 + 128 + 896 + 896 + 4864 + 4864 + 896) + 4 * 14
    assert with_some.activations - with_inputs.activations == 24 * kept * 8192


def test_fsdp2_counts_what_stands_gathered_and_what_is_on_its_way() -> None:
    """At the last layer: that one and the next gathered in bfloat16, the output layer's gradient
    in float32 on its way to the shards, one matrix's gradient."""
    memory = memory_of(8, "model=qwen2_5_7b", "trainer=fsdp2")
    layer = (7_615_616_512 - 2 * 152064 * 3584 - 3584) // 28
    assert memory.gathered == 2 * 2 * layer
    assert memory.moving == 4 * 152064 * 3584 + 2 * 18944 * 3584
    assert memory.lower_copies == 0


def test_ddp_has_buckets_and_a_step_without_one_kernel_has_copies() -> None:
    n = PUBLIC_TOTALS["qwen2_5_0_5b"]
    assert memory_of(8, "model=qwen2_5_0_5b", "trainer=ddp").buckets == 4 * n
    assert memory_of(1, "model=qwen2_5_0_5b", "trainer=ddp", "trainer.devices=1").buckets == 0
    many = memory_of(1, "model=qwen2_5_7b", "optimizer.fused=false")
    assert many.step_copies == 4 * PUBLIC_TOTALS["qwen2_5_7b"]
    assert many.training == many.states + many.step_copies  # more than the pass


def test_the_larger_phase_counts_where_the_engine_sleeps() -> None:
    """In an update its graphs stay; in a rollout there are no gradients."""
    memory = memory_of(8, "model=qwen2_5_7b", "trainer=fsdp2")
    assert memory.context == CUDA_BYTES + NCCL_BYTES
    assert memory.updating == memory.context + memory.training + GRAPHS
    n = -(-PUBLIC_TOTALS["qwen2_5_7b"] // 8)
    assert memory.sampling == memory.context + 12 * n + int(0.4 * 80 * GIB)
    assert memory.total == max(memory.updating, memory.sampling)
    for never in ("engine.sleep=false", "rollout.overlap=true"):
        awake = memory_of(8, "model=qwen2_5_7b", "trainer=fsdp2", "engine.sleep=false", never)
        assert awake.total == memory.context + memory.training + int(0.4 * 80 * GIB)


def test_a_step_and_graphs_leave_the_rest_to_keys_and_values() -> None:
    """The feed-forward's two products, of which each of two devices has half, and four vectors;
    logits twice in float32."""
    memory = memory_of(8, "model=qwen2_5_7b", "trainer=fsdp2", "engine.tensor_parallel=2")
    step = 8192 * 2 * (2 * 18944 // 2 + 4 * 3584) + 2 * 4 * 128 * 152064
    assert (memory.engine_steps, memory.engine_graphs) == (step, GRAPHS)
    reserved = int(0.4 * 80 * GIB)
    assert memory.engine_cache == reserved - PUBLIC_TOTALS["qwen2_5_7b"] - step - GRAPHS
    given = memory_of(8, "model=qwen2_5_7b", "trainer=fsdp2", "engine.gpu_kv_cache_gib=3")
    assert given.engine_cache == 3 * GIB
    assert given.engine > given.engine_weights + 3 * GIB + GRAPHS


def test_what_vllm_will_refuse_is_refused_to_the_token() -> None:
    """A token of 48 layers with 8 heads of 128: 196,608 bytes; 32,768 of them are 6 GiB."""
    settings = ["model=qwen2_5_14b", "trainer=fsdp2", "trainer.devices=8"]
    plan = make_plan(compose("train", [*settings, "engine.max_model_len=32768"]), 8)
    assert not plan.fits
    assert "one context of 32,768 tokens take 6.00 GiB of each card" in plan.advice
    longest = plan.memory.engine_cache // (2 * 48 * 8 * 128 * 2)
    assert make_plan(compose("train", [*settings, f"engine.max_model_len={longest}"]), 8).fits
    longer = compose("train", [*settings, f"engine.max_model_len={longest + 1}"])
    assert not make_plan(longer, 8).fits


def test_float32_needs_no_copies_in_bfloat16() -> None:
    config = compose("train", ["model=smollm2_135m"])
    assert config.model.architecture is not None
    memory = estimate_memory(config, config.model.architecture, 1)
    assert memory.lower_copies == 0
    assert memory.weights == 4 * PUBLIC_TOTALS["smollm2_135m"]


def test_fsdp2_shards_states_and_ddp_does_not() -> None:
    def states(trainer: str, devices: int) -> int:
        config = compose("train", ["model=qwen2_5_7b", f"trainer={trainer}"])
        assert config.model.architecture is not None
        return estimate_memory(config, config.model.architecture, devices).states

    assert states("ddp", 8) == states("ddp", 1) == states("fsdp2", 1)
    assert states("fsdp2", 8) == pytest.approx(states("ddp", 1) / 8, rel=1e-6)


def test_kl_term_holds_a_reference() -> None:
    config = compose("train", ["model=qwen2_5_0_5b", "algorithm=mempo_paper"])
    assert config.model.architecture is not None
    memory = estimate_memory(config, config.model.architecture, 1)
    assert memory.reference == 2 * PUBLIC_TOTALS["qwen2_5_0_5b"]


def test_tokens_and_rows_are_upper_bounds_per_epoch() -> None:
    settings = ["rollout.tasks_per_epoch=4", "rollout.group_size=16", "rollout.max_rounds=8"]
    plan = make_plan(compose("train", [*settings, "rollout.max_response_tokens=4096"]), 1)
    assert plan.trajectories == 64
    assert plan.response_tokens == 262_144
    assert plan.scored_rounds == 64 * 7
    assert plan.scoring_rows == 2 * 64 * 7
    previous = make_plan(compose("train", [*settings, "scoring.baseline=previous"]), 1)
    assert previous.scoring_rows == 64 * 7 + 64


def test_no_rows_without_scoring() -> None:
    config = compose("train", ["algorithm=grpo", "scoring.enabled=false"])
    assert make_plan(config, 1).scoring_rows == 0


@pytest.mark.parametrize(
    ("overrides", "gpus", "expected"),
    [
        (["trainer=fsdp2"], 0, (8, True)),
        (["trainer=fsdp2"], 4, (4, False)),
        (["trainer=fsdp2", "trainer.num_nodes=2"], 0, (16, True)),
        (["trainer=fsdp2", "trainer.devices=2"], 0, (2, False)),
        (["trainer=default"], 0, (1, False)),
        (["trainer=ddp", "trainer.accelerator=cpu"], 0, (1, False)),
    ],
)
def test_planned_world_size(overrides: list[str], gpus: int, expected: tuple[int, bool]) -> None:
    assert planned_world_size(compose("train", overrides), gpus) == expected


@pytest.mark.parametrize(
    ("overrides", "devices", "fits", "words"),
    [
        (["model=tiny"], 1, True, ["Fits a card of 80 GiB"]),
        (["model=qwen2_5_7b", "trainer=fsdp2"], 8, True, ["Fits a card of 80 GiB"]),
        (["model=qwen2_5_7b", "trainer=ddp"], 8, False, ["trainer=fsdp2"]),
        (["model=qwen2_5_32b", "trainer=fsdp2"], 32, False, ["engine.tensor_parallel", "to 4"]),
        (
            ["model=qwen2_5_72b", "trainer=fsdp2", "engine.tensor_parallel=8"],
            8,
            False,
            ["Use at least", "trainer.num_nodes"],
        ),
        (
            ["model=qwen2_5_7b", "trainer=fsdp2", "model.gradient_checkpointing=false"],
            4,
            False,
            ["model.gradient_checkpointing=true"],
        ),
        (
            ["model=qwen2_5_7b", "trainer=fsdp2", "optimizer.micro_batch_tokens=200000"],
            8,
            False,
            ["Lower optimizer.micro_batch_tokens"],
        ),
        (["model=tiny", "trainer=cpu"], 1, True, ["main memory"]),
    ],
)
def test_advice(overrides: list[str], devices: int, fits: bool, words: list[str]) -> None:
    plan = make_plan(compose("train", overrides), devices)
    assert plan.fits is fits
    for word in words:
        assert word in plan.advice


def test_advised_number_of_devices_fits() -> None:
    overrides = ["model=qwen2_5_72b", "trainer=fsdp2", "engine.tensor_parallel=8"]
    config = compose("train", overrides)
    advice = make_plan(config, 8).advice
    needed = int(advice.split("Use at least ")[1].split()[0])
    assert make_plan(config, needed).fits
    assert not make_plan(config, needed - 1).fits


def test_model_without_sizes_is_told(tmp_path: Path) -> None:
    config = compose("train", ["model=pretrained", f"model.path={tmp_path}"])
    with pytest.raises(ConfigError, match=r"its config\.json cannot be read"):
        make_plan(config, 1)
    config = compose("train", ["model=smollm2_135m", "model.architecture=null"])
    with pytest.raises(ConfigError, match=r"model\.architecture and model\.path are null"):
        make_plan(config, 1)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"qwen3_moe", "mixtral"}))
def test_sizes_of_every_family_are_read_from_its_folder(family: str, tmp_path: Path) -> None:
    model = write_family(family, tmp_path)
    (tmp_path / "model.safetensors").unlink()  # config.json is enough
    overrides = [
        "model=pretrained",
        f"model.path={tmp_path}",
        "model.dtype=float32",
        "engine.max_model_len=256",
    ]
    plan = make_plan(compose("train", overrides), 1)
    count = sum(p.numel() for p in model.parameters())
    assert plan.parameters.total == count
    assert plan.parameters.layers == 2
    assert plan.parameters.embedding == model.get_input_embeddings().weight.numel()
    assert plan.memory.weights == 4 * count
    adapted = make_plan(compose("train", [*overrides, "lora=default", "model.lora.rank=2"]), 1)
    trained = add_adapters(model, LoraSettings(rank=2))
    adapters = sum(p.numel() for p in trained.parameters() if p.requires_grad)
    assert adapted.memory.optimizer_states == 8 * adapters


def test_printed_plan_says_what_it_assumes(tmp_path: Path) -> None:
    config = compose("train", ["model=qwen2_5_7b", "trainer=fsdp2"])
    with (tmp_path / "plan.txt").open("w") as file:
        print_plan(make_plan(config, *planned_world_size(config, 0)), Console(file=file, width=100))
    text = (tmp_path / "plan.txt").read_text()
    for words in ("assuming 8 GPUs", "7,615,616,512", "rows scored", "Fits a card of 80 GiB"):
        assert words in text


def supervised(*overrides: str) -> SupervisedPlan:
    plan = make_plan(compose("train", ["model=qwen2_5_7b", *overrides]), 1)
    assert plan.supervised is not None
    return plan.supervised


def test_the_plan_counts_what_the_supervised_start_trains() -> None:
    files = ["sft=file", "sft.path=[a.jsonl, b.jsonl]", "lora=default"]
    whole, adapters = supervised(*files), supervised(*files, "sft.train=adapters")
    total = PUBLIC_TOTALS["qwen2_5_7b"]
    # 28 layers of widths 3584, 512 for keys and values, 18944 inside, of rank 16
    added = 28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    assert (whole.source, whole.trained, adapters.trained) == ("a.jsonl, b.jsonl", total, added)
    # Weights, gradients and two moments in float32, against frozen weights in bfloat16.
    assert whole.memory.states == 16 * total
    assert adapters.memory.states == 2 * total + 16 * added
    assert whole.total == whole.memory.context + whole.memory.training > adapters.total


def test_a_supervised_start_that_does_not_fit_is_told(tmp_path: Path) -> None:
    files = ["model=qwen2_5_7b", "sft=file", "sft.path=a.jsonl", "lora=default"]
    plan = make_plan(compose("train", files), 1)
    assert not plan.fits
    assert plan.advice.startswith("Fits a card of 80 GiB")  # RL does
    assert "The supervised start does not fit a card of 80 GiB" in plan.advice
    assert "Set sft.train=adapters" in plan.advice
    fitting = make_plan(compose("train", [*files, "sft.train=adapters"]), 1)
    assert fitting.fits
    with (tmp_path / "plan.txt").open("w") as file:
        console = Console(file=file, width=200)
        print_plan(fitting, console)
        print_plan(make_plan(compose("train", ["model=qwen2_5_7b"]), 1), console)
    text = (tmp_path / "plan.txt").read_text()
    assert "300 steps of 32 texts of a.jsonl train the adapters, merged before RL, 40," in text
    assert "Supervised start: none (sft.enabled=false). sft=file sft.path=" in text


def test_plan_needs_no_torch() -> None:
    program = (
        "import sys; from mempo.command.cli import compose; "
        "from mempo.command.plan import make_plan; "
        "make_plan(compose('train'), 1); assert 'torch' not in sys.modules"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
