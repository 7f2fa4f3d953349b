"""The runs that have a name (docs/recipes.md): what the authors state, what fits which card, and a
sweep over them (section 12)."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from mempo.command.cli import CONF_DIR, compose, hydra_untouched
from mempo.command.memory_estimate import GIB
from mempo.command.plan import Plan, make_plan, planned_world_size
from mempo.command.planning.advice import USABLE
from mempo.runtime.nested import leaves

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")

# Recipe: devices, GiB of one card, parameters of the model, whether adapters alone are trained.
RECIPES = {
    "paper_7b": (8, 80, 7_615_616_512, False),
    "paper_7b_lora": (4, 80, 7_615_616_512, True),
    "qwen_1_5b": (1, 24, 1_543_714_304, True),
    "qwen_0_5b": (1, 12, 494_032_768, True),
}


def plan(recipe: str) -> Plan:
    config = compose("train", [f"experiment={recipe}"])
    return make_plan(config, *planned_world_size(config, gpus=0))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_fits_its_cards(recipe: str) -> None:
    devices, card, parameters, adapters = RECIPES[recipe]
    found = plan(recipe)
    assert (found.devices, found.devices_assumed) == (devices, False)
    assert found.parameters.total == parameters
    assert found.memory.total <= USABLE * card * GIB
    assert found.fits
    assert f"Fits a card of {card} GiB" in found.advice
    config = compose("train", [f"experiment={recipe}"])
    assert (config.model.lora is not None) is adapters
    # Keys and values of two whole contexts at least: weights of the engine leave room to sample.
    sizes = config.model.architecture
    assert sizes is not None
    token = 2 * 2 * sizes.num_hidden_layers * sizes.num_key_value_heads
    token *= sizes.hidden_size // sizes.num_attention_heads
    length = config.engine.max_model_len or sizes.max_position_embeddings
    assert found.memory.engine_cache > 2 * token * length
    # A whole trajectory is one row of a micro-batch, which is never cut.
    limits = config.rollout
    assert config.optimizer.micro_batch_tokens >= limits.max_response_tokens + 1024


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_may_begin_with_a_file_of_trajectories(recipe: str) -> None:
    given = [f"experiment={recipe}"]
    assert not compose("train", given).sft.enabled
    given += ["sft=file", "sft.path=t.jsonl"]
    if RECIPES[recipe][3]:
        given.append("sft.train=adapters")
    config = compose("train", given)
    assert (config.sft.enabled, config.sft.source) == (True, "file")
    assert make_plan(config, *planned_world_size(config, gpus=0)).fits


def test_plans_by_hand() -> None:
    """Weights in float32, gradients, two moments; the engine's share of the card."""
    memory = plan("paper_7b").memory
    n = -(-7_615_616_512 // 8)
    assert memory.states == 16 * n + 2 * n  # and the reference of the KL term in bfloat16
    assert memory.engine == int(0.4 * 80 * GIB)
    small = plan("qwen_0_5b").memory
    adapters = 24 * 16 * (2 * (896 + 896) + 2 * (896 + 128) + 3 * (896 + 4864))
    assert small.states == 16 * adapters + 2 * 494_032_768
    assert small.engine == int(0.4 * 12 * GIB)


def test_a_smaller_card_is_refused_by_the_plan() -> None:
    config = compose("train", ["experiment=qwen_1_5b", "trainer.card_gib=8"])
    found = make_plan(config, 1)
    assert not found.fits
    assert "Does not fit a card of 8 GiB" in found.advice
    whole = compose("train", ["experiment=qwen_1_5b", "lora=none"])
    assert not make_plan(whole, 1).fits  # why that recipe trains adapters


def test_the_papers_run_has_what_the_authors_state() -> None:
    """Specification sections 4, 7, 9 and 12."""
    config = compose("train", ["experiment=paper_7b"])
    assert config.model.path == "Qwen/Qwen2.5-7B-Instruct"
    assert {name: one.format for name, one in config.data.sets().items()} == {
        "hotpotqa": "hotpotqa",
        "nq": "open_qa",
    }
    assert config.data.objectives == 2
    assert (config.rollout.tasks_per_epoch, config.rollout.group_size) == (128, 16)
    assert (config.rollout.max_rounds, config.rollout.max_response_tokens) == (8, 4096)
    assert config.optimizer.learning_rate == 1e-6
    assert (config.trainer.strategy, config.trainer.devices) == ("fsdp2", 8)
    assert config.algorithm.name == "mempo_paper"
    evaluation = compose("evaluate", ["experiment=paper_7b"]).evaluation
    assert tuple(evaluation.objectives or ()) == (2, 4, 6, 8, 10)
    assert (evaluation.max_rounds, evaluation.prefill_memory) == (64, True)


def test_every_value_of_the_papers_run_says_where_it_is_from() -> None:
    """The paper, the released code, or nowhere: "not published"."""
    lines = (CONF_DIR / "experiment" / "paper_7b.yaml").read_text("utf-8").splitlines()
    start = lines.index("data:")
    values = [line for line in lines[start:] if re.match(r"\s+\w+: +[^ #]", line)]
    assert len(values) > 30
    files = ("format:", "questions:", "heldout_questions:", "url:")
    own = ("micro_batch_tokens:", "contexts:", "checkpoint_every:")
    unmarked = [
        line
        for line in values
        if not re.search(r"# .*(paper|released code|not published)", line)
        and not line.strip().startswith((*files, *own))
    ]
    assert unmarked == []
    unknown = {
        "optimizer.weight_decay", "rollout.temperature", "trainer.devices", "trainer.max_epochs",
        "optimizer.updates_per_epoch", "data.mix.nq.share", "data.mix_objectives",
    }  # fmt: skip
    text = "\n".join(lines)
    for name in unknown:
        assert re.search(rf"^ +{name.split('.')[-1]}: .*# not published", text, re.MULTILINE), name


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"paper_7b"}))
def test_the_smaller_recipes_keep_the_method(recipe: str) -> None:
    def method(name: str) -> dict[str, Any]:
        with hydra_untouched(), initialize_config_dir(str(CONF_DIR), version_base="1.3"):
            tree = hydra_compose("train", [f"experiment={name}", "run_dir=x"])
        whole = leaves(OmegaConf.to_container(tree, resolve=True))  # type: ignore[arg-type]
        sections = ("data", "reward", "scoring", "outcome", "memory", "loss", "rollout")
        return {
            key: value
            for key, value in whole.items()
            if key.split(".")[0] in (*sections, "evaluation") and key != "rollout.tasks_per_epoch"
        }

    assert method(recipe) == method("paper_7b")


def test_the_sweep_composes_in_every_combination() -> None:
    given = ["experiment=qwen_0_5b", "sweep=seeds_and_variants"]
    with hydra_untouched(), initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        tree = hydra_compose("train", [*given, "run_dir=x"], return_hydra_config=True)
    params = {name: str(values).split(",") for name, values in tree.hydra.sweeper.params.items()}
    assert params == {"algorithm": ["mempo_paper", "mempo", "grpo"], "seed": ["0", "1", "2"]}
    found = set()
    for values in product(*params.values()):
        chosen = [f"{name}={value}" for name, value in zip(params, values, strict=True)]
        config = compose("train", [*given, *chosen])
        found.add((config.algorithm.name, config.memory.weight, config.seed))
    weights = {"mempo_paper": 1.0, "mempo": 1.0, "grpo": 0.0}
    assert found == {(name, w, seed) for name, w in weights.items() for seed in (0, 1, 2)}


@pytest.mark.slow
def test_a_sweep_starts_a_run_for_each_combination(tmp_path: Path) -> None:
    command = "--multirun experiment=qwen_0_5b sweep=seeds_and_variants dry_run=true seed=5"
    done = subprocess.run(
        [sys.executable, "train.py", *command.split(), f"hydra.sweep.dir={tmp_path / 'sweep'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("Fits a card of 12 GiB") == 3


def test_the_page_has_the_plans() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) × (\d+) GiB \| .+ \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
    )
    expected = []
    for recipe, (devices, card, *_) in RECIPES.items():
        memory = plan(recipe).memory
        figures = (f"{memory.total / GIB:.1f}", f"{memory.engine / GIB:.1f}")
        expected.append((recipe, str(devices), str(card), *figures))
    assert rows == expected
