"""The gradient of the whole loss against an independent computation (sections 6 to 8).

Left: the project's own road, from rewards of trajectories to the gradient of a float32 model, in
micro-batches. Right: loops over single tokens in float64 that share no code with it and read the
formulas off the specification.
"""

from __future__ import annotations

import copy
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.command.cli import compose
from mempo.config import Config
from mempo.learning.advantages import assign_advantages
from mempo.learning.loss import aggregation_weights
from mempo.learning.micro_batches import TrainingRow, plan_micro_batches
from mempo.learning.scored_rows import ScoredText
from mempo.learning.scoring import MemoryScorer
from mempo.models.checkpointing import enable_gradient_checkpointing
from mempo.training.epoch_dataset import EpochDataset
from mempo.training.module import MemPOModule, learning_rate_factor
from mempo.trajectory import Objective, Round, SpanKind, Task, TokenSequence, Trajectory

VOCABULARY = 31
STEPS = 3
ROOT = Path(__file__).resolve().parents[2]
VARIANTS: dict[str, list[str]] = {
    "mempo": ["algorithm=mempo"],
    "mempo_reference": ["algorithm=mempo_reference"],
    "mempo_paper": ["algorithm=mempo_paper"],
    "grpo": ["algorithm=grpo"],
    "pool by round": ["memory.pool=round"],
    "no division": ["outcome.normalize_std=false", "memory.normalize_std=false"],
    "outcome floor": ["outcome.std_floor=0.7", "memory.std_floor=0.2"],
    "skip bad outcomes": ["memory.only_if_outcome_nonnegative=true", "memory.weight=0.6"],
    "length penalty": ["memory.length_penalty=3.0"],
    "discounted": ["memory.gamma=0.6"],
    "discounted, by round": ["memory.gamma=0.9", "memory.pool=round", "memory.length_penalty=3.0"],
    "narrow clip": ["loss.clip_low=0.02", "loss.clip_high=0.03", "loss.dual_clip=1.01"],
    "k1": ["loss.kl_coefficient=0.3", "loss.kl_estimator=k1"],
    "k2": ["loss.kl_coefficient=0.3", "loss.kl_estimator=k2"],
    "k3": ["loss.kl_coefficient=0.3", "loss.kl_estimator=k3"],
    "entropy": ["loss.entropy_coefficient=0.2"],
    "importance": ["loss.importance_cap=1.05"],
    "temperature": ["rollout.temperature=0.7"],
    "memory context": ["rollout.context=memory"],
    "memory context, more rounds more weight": [
        "rollout.context=memory",
        "loss.weight_grows_with_rounds=true",
    ],
    "memory context, trajectory mean": [
        "rollout.context=memory",
        "loss.aggregation=trajectory_mean",
    ],
}


UNTIED = "+untied"
"""A word for the program and the test: the output layer has weights of its own."""


def make_model(seed: int, tied: bool = True) -> Any:
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            initializer_range=0.3,
        )
    )


def make_group(task: str, memory_context: bool, rng: random.Random) -> list[Trajectory]:
    """Four trajectories of one prompt, and of different rounds and lengths. ``old_logprobs`` and
    the engine's log-probabilities lie near the model's own, so that ratios stand on both sides of
    the clip."""
    prompt = [rng.randrange(VOCABULARY) for _ in range(3)]
    group = []
    for sample, rounds in enumerate([1, 2, 3, 4]):
        made = Trajectory(Task(task, (Objective("q", ("g",)),)), 0, sample, prompt_length=3)
        made.reward = rng.choice([0.0, 0.5, 1.0])
        for number in range(1, rounds + 1):
            if memory_context or number == 1:
                made.sequences.append(TokenSequence())
                made.sequences[-1].append_context(prompt)
            sequence = made.sequences[-1]
            start = len(sequence)
            memory, other = (0 if number == 1 else rng.randint(2, 4)), rng.randint(1, 3)
            kinds = [SpanKind.MEMORY] * memory + [SpanKind.OTHER] * other
            ids = [rng.randrange(VOCABULARY) for _ in kinds]
            sequence.append_policy(ids, [0.0] * len(ids), kinds)
            made.rounds.append(
                Round(
                    number=number,
                    sequence=len(made.sequences) - 1,
                    snapshot_length=start,
                    start=start,
                    end=len(sequence),
                    text="",
                    memory_span=(start, start + memory) if memory else None,
                    memory_reward=rng.uniform(-1, 1) if memory else None,
                )
            )
            sequence.append_context([rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 3))])
        group.append(made)
    return group


def double_logprobs(model: Any, ids: Sequence[int], temperature: float) -> torch.Tensor:
    """log-softmax of every position's next token in float64, [T - 1, V]."""
    logits = model(input_ids=torch.tensor([list(ids)])).logits[0, :-1]
    return torch.log_softmax(logits / temperature, dim=-1)


def fill_logprobs(model: Any, groups: list[list[Trajectory]], temperature: float) -> None:
    """Old and engine log-probabilities: the model's own, moved by up to 0.1."""
    rng = random.Random(5)
    for trajectory in (member for group in groups for member in group):
        for sequence in trajectory.sequences:
            with torch.no_grad():
                table = double_logprobs(model, sequence.ids, temperature)
            sequence.old_logprobs = [0.0] * len(sequence)
            for position, is_policy in enumerate(sequence.mask):
                if is_policy:
                    own = float(table[position - 1, sequence.ids[position]])
                    sequence.old_logprobs[position] = own + rng.uniform(-0.1, 0.1)
                    sequence.logprobs[position] = own + rng.uniform(-0.1, 0.1)


def zscores(values: list[float], floor: float, divide: bool) -> list[float]:
    """Section 7, read off the page."""
    if len(set(values)) <= 1:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    if not divide:
        return [value - mean for value in values]
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return [(value - mean) / (max(deviation, floor) + 1e-6) for value in values]


def expected_gradient(
    model: Any, reference: Any, groups: list[list[Trajectory]], config: Config
) -> dict[str, torch.Tensor]:
    """The gradient of section 8's loss in float64, token by token."""
    loss_settings, memory, temperature = config.loss, config.memory, config.rollout.temperature
    everyone = [member for group in groups for member in group]
    tokens = [sum(sum(s.mask) for s in member.sequences) for member in everyone]
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        outcome = zscores(
            [float(member.reward or 0.0) for member in group],
            config.outcome.std_floor,
            config.outcome.normalize_std,
        )
        pools: dict[int, list[tuple[int, int, float]]] = {}
        for which, member in enumerate(group):
            for index, entry in enumerate(member.rounds):
                if entry.number == 1 or entry.memory_span is None:
                    continue
                value, later = 0.0, 0
                for other in member.rounds[index:]:
                    if other.memory_span is not None:
                        first, last = other.memory_span
                        own = float(other.memory_reward or 0.0)
                        own -= memory.length_penalty * (last - first) / 100
                        value += memory.gamma**later * own
                        later += 1
                key = entry.number if memory.pool == "round" else 0
                pools.setdefault(key, []).append((which, index, value))
        memory_part: dict[tuple[int, int], float] = {}
        for pool in pools.values():
            scores = zscores([v for _, _, v in pool], memory.std_floor, memory.normalize_std)
            for (which, index, _), score in zip(pool, scores, strict=True):
                if memory.only_if_outcome_nonnegative and outcome[which] < 0:
                    score = 0.0
                memory_part[which, index] = score
        for which, member in enumerate(group):
            own = tokens[everyone.index(member)]
            per_trajectory = loss_settings.aggregation == "trajectory_mean" or (
                config.rollout.context == "memory" and not loss_settings.weight_grows_with_rounds
            )
            share = 1 / (own * len(everyone)) if per_trajectory else 1 / sum(tokens)
            for number, sequence in enumerate(member.sequences):
                table = double_logprobs(model, sequence.ids, temperature)
                with torch.no_grad():
                    fixed = double_logprobs(reference, sequence.ids, temperature)
                for position, is_policy in enumerate(sequence.mask):
                    if not is_policy:
                        continue
                    advantage = outcome[which]
                    for index, entry in enumerate(member.rounds):
                        span = entry.memory_span
                        if entry.sequence == number and span and span[0] <= position < span[1]:
                            advantage += memory.weight * memory_part.get((which, index), 0.0)
                    token = sequence.ids[position]
                    logp = table[position - 1, token]
                    assert sequence.old_logprobs is not None
                    old = sequence.old_logprobs[position]
                    ratio = torch.exp(logp - old)
                    low, high = 1 - loss_settings.clip_low, 1 + loss_settings.clip_high
                    term = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
                    if advantage < 0:
                        term = torch.minimum(
                            term, torch.tensor(-loss_settings.dual_clip * advantage).double()
                        )
                    if loss_settings.importance_cap is not None:
                        engine = sequence.logprobs[position]
                        assert engine is not None
                        term = term * min(math.exp(old - engine), loss_settings.importance_cap)
                    d = fixed[position - 1, token] - logp
                    kl = {"k1": -d, "k2": d**2 / 2, "k3": torch.exp(d) - d - 1}
                    row = table[position - 1]
                    entropy = -(row.exp() * row).sum()
                    total = total + share * (
                        term
                        + loss_settings.kl_coefficient * kl[loss_settings.kl_estimator]
                        - loss_settings.entropy_coefficient * entropy
                    )
    model.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def weighted_rows(trajectories: list[Trajectory], config: Config) -> list[TrainingRow]:
    """The project's rows of one optimizer step, with advantages."""
    assign_advantages(trajectories, config.outcome, config.memory)
    weights = aggregation_weights(
        [member.policy_tokens for member in trajectories],
        config.loss.aggregation,
        equal_trajectories=config.rollout.context == "memory"
        and not config.loss.weight_grows_with_rounds,
    )
    return [
        TrainingRow(member, sequence, weight)
        for member, weight in zip(trajectories, weights, strict=True)
        for sequence in member.sequences
    ]


def plan_counts(
    rows: list[TrainingRow], budget: int, share: bool = False, packed: bool = False
) -> int:
    return len(plan_micro_batches(rows, budget, share, packed))


def epoch_dataset(
    rows: list[TrainingRow],
    count: int,
    budget: int,
    config: Config,
    share: bool = False,
    packed: bool = False,
) -> EpochDataset:
    skip_zeros = config.loss.kl_coefficient == 0 and config.loss.entropy_coefficient == 0
    return EpochDataset([rows], [count], budget, skip_zeros, [share], packed)


def own_gradient(
    module: MemPOModule,
    groups: list[list[Trajectory]],
    config: Config,
    budget: int,
    share: bool = False,
    packed: bool = False,
) -> dict[str, torch.Tensor]:
    """The project's gradient: advantages, weights, micro-batches, loss, backward."""
    rows = weighted_rows([member for group in groups for member in group], config)
    module.model.zero_grad()
    count = plan_counts(rows, budget, share, packed)
    dataset = epoch_dataset(rows, count, budget, config, share, packed)
    assert any(dataset[number].shared for number in range(len(dataset))) == share
    for number in range(len(dataset)):
        loss, _ = module.loss(dataset[number])
        loss.backward()
    return {
        name: p.grad.clone() for name, p in module.model.named_parameters() if p.grad is not None
    }


def make_case(config: Config, tied: bool = True) -> tuple[Any, Any, list[list[Trajectory]]]:
    """A model, a reference and three groups, the last of them constant."""
    rng = random.Random(11)
    memory_context = config.rollout.context == "memory"
    groups = [make_group(name, memory_context, rng) for name in ("a", "b", "constant")]
    for member in groups[2]:
        member.reward = 0.5
        for entry in member.rounds:
            if entry.memory_reward is not None:
                entry.memory_reward = -0.25
    model = make_model(0, tied)
    fill_logprobs(copy.deepcopy(model).double(), groups, config.rollout.temperature)
    return model, make_model(1), groups


def assert_same_gradient(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    scale = max(float(value.abs().max()) for value in expected.values())
    assert scale > 1e-3
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=2e-4, atol=2e-6 * scale)


@pytest.mark.parametrize(
    ("budget", "share", "packed"),
    [
        (1, False, False),
        (10_000, False, False),
        (90, True, False),
        (10_000, False, True),
        (90, True, True),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_is_the_specifications(
    variant: str, budget: int, share: bool, packed: bool
) -> None:
    """For every micro-batch split, with prompts that are computed once or in every row, and with
    rows that are padded or laid end to end."""
    config = compose("train", VARIANTS[variant])
    model, reference, groups = make_case(config)
    exact, exact_reference = copy.deepcopy(model).double(), copy.deepcopy(reference).double()
    expected = expected_gradient(exact, exact_reference, groups, config)
    module = MemPOModule(model, config, reference if config.loss.kl_coefficient > 0 else None)
    assert_same_gradient(own_gradient(module, groups, config, budget, share, packed), expected)


SHARED_VARIANTS = ["mempo", "k3", "entropy", "temperature", "memory context"]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", [True, "selective"])
@pytest.mark.parametrize("variant", SHARED_VARIANTS)
def test_prompts_are_shared_where_layers_are_computed_again(
    variant: str, checkpointing: Any, attention: str
) -> None:
    config = compose("train", VARIANTS[variant])
    model, reference, groups = make_case(config)
    exact, exact_reference = copy.deepcopy(model).double(), copy.deepcopy(reference).double()
    expected = expected_gradient(exact, exact_reference, groups, config)
    model.set_attn_implementation(attention)
    enable_gradient_checkpointing(model.train(), checkpointing)
    module = MemPOModule(model, config, reference if config.loss.kl_coefficient > 0 else None)
    assert module.shares_prompts
    assert_same_gradient(own_gradient(module, groups, config, 90, share=True), expected)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("checkpointing", [True, "selective"])
@pytest.mark.parametrize("lora", [False, True])
def test_shared_prompts_in_bfloat16_are_as_near_to_the_truth_as_others(
    lora: bool, checkpointing: Any
) -> None:
    """Passes under autocast, as bf16-mixed has them, against the float32 gradient of the same
    model: the rounding of its units of 0.4 % adds up, most with the large adapters."""
    config = compose("train", VARIANTS["mempo"])
    found: dict[str, torch.Tensor] = {}
    for name, share, again, low in (
        ("truth", False, False, False),
        ("plain", False, False, True),
        ("shared", True, checkpointing, True),
        ("shared in float32", True, checkpointing, False),
    ):
        model, _, groups = make_case(config)
        policy = with_adapters(model) if lora else model
        enable_gradient_checkpointing(policy.train(), again)
        module = MemPOModule(policy, config)
        budget = 90 if share else 10_000
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            found[name] = flat(own_gradient(module, groups, config, budget, share))
    truth = found.pop("truth")
    off = {name: float((value - truth).norm() / truth.norm()) for name, value in found.items()}
    assert off["shared in float32"] < 1e-5
    assert 1e-4 < off["plain"] < 0.3
    assert off["shared"] < 2 * off["plain"]


def with_adapters(model: Any) -> Any:
    """LoRA adapters whose B is not zero, so that both have a gradient."""
    torch.manual_seed(7)
    settings = LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    return get_peft_model(model, settings)


CREDITS: dict[str, list[str]] = {
    "default": [],
    "log": ["scoring.reward=log_probability"],
    "log, filtered": ["scoring.reward=log_probability", "scoring.threshold=0.1"],
    "previous": ["scoring.baseline=previous", "memory.gamma=0.7", "memory.pool=round"],
    "log, previous": ["scoring.reward=log_probability", "scoring.baseline=previous"],
    "all": [
        "scoring.reward=log_probability",
        "scoring.baseline=previous",
        "scoring.threshold=0.1",
        "memory.gamma=0.7",
        "rollout.context=memory",
    ],
}
ANSWER = ScoredText((3, 17, 5, 29), (0, 1, 1, 0))


def expected_reward(model: Any, member: Trajectory, index: int, config: Config) -> float:
    """Section 6 and docs/switches.md, in float64, one row for each context."""
    scoring, prompt = config.scoring, member.sequences[0].ids[: member.prompt_length]

    def memory_row(entry: Round) -> list[int]:
        assert entry.memory_span is not None
        own = member.sequences[entry.sequence].ids
        return [*prompt, *own[entry.start : entry.memory_span[1]]]

    def log_p(context: list[int]) -> float:
        with torch.no_grad():
            table = double_logprobs(model, [*context, *ANSWER.ids], 1.0)
        found = [
            float(table[len(context) + place - 1, token])
            for place, token in enumerate(ANSWER.ids)
            if ANSWER.mask[place]
        ]
        limit = -math.inf if scoring.threshold is None else math.log(scoring.threshold)
        kept = [value for value in found if value > limit] or found
        return math.fsum(kept) / (len(kept) + 1e-8)

    entry = member.rounds[index]
    before = member.sequences[entry.sequence].ids[: entry.snapshot_length]
    if scoring.baseline == "previous":
        earlier = [one for one in member.rounds[1:index] if one.memory_span is not None]
        before = memory_row(earlier[-1]) if earlier else prompt
    after, base = log_p(memory_row(entry)), log_p(before)
    if scoring.reward == "log_probability":
        return after - base
    return math.exp(after) - math.exp(base)


@pytest.mark.parametrize("credit", CREDITS)
def test_from_the_scored_answer_to_the_gradient(
    credit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mempo.learning.scoring.encode_answer", lambda *_: ANSWER)
    config = compose("train", CREDITS[credit])
    model, reference, groups = make_case(config)
    exact = copy.deepcopy(model).double()
    MemoryScorer(None, config.scoring).score(model, [one for group in groups for one in group])
    truth = copy.deepcopy(groups)
    for member in (one for group in truth for one in group):
        for index, entry in enumerate(member.rounds):
            if entry.memory_reward is not None:
                expected = expected_reward(exact, member, index, config)
                assert entry.memory_reward == pytest.approx(expected, abs=2e-6)
                entry.memory_reward = expected
    gradient = expected_gradient(exact, copy.deepcopy(reference).double(), truth, config)
    module = MemPOModule(model, config)
    assert_same_gradient(own_gradient(module, groups, config, budget=10_000), gradient)


@pytest.mark.parametrize("memory_context", [False, True])
def test_nan_at_a_policy_token_names_trajectory_round_and_position(memory_context: bool) -> None:
    """In the third sample's second round, the trajectory's second sequence or its first."""
    config = compose("train", [f"rollout.context={'memory' if memory_context else 'full'}"])
    model, _, groups = make_case(config)
    sample = groups[1][2]
    damaged = sample.rounds[1]
    position = damaged.end - 1
    old = sample.sequences[damaged.sequence].old_logprobs
    assert old is not None
    old[position] = math.nan
    rows = weighted_rows([member for group in groups for member in group], config)
    dataset = epoch_dataset(rows, plan_counts(rows, 10_000), 10_000, config)
    expected = (
        "^old_logprobs is NaN or infinite at policy tokens: "
        f"task b, epoch 0, sample 2, round 2, position {position}$"
    )
    module = MemPOModule(model, config)
    with pytest.raises(FloatingPointError, match=expected):
        list(map(module.loss, (dataset[number] for number in range(len(dataset)))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "variant", "settings"),
    [
        ("ddp", "mempo", []),
        ("ddp", "mempo", ["model.gradient_checkpointing=selective"]),
        ("fsdp2", "k3", []),
        ("fsdp2", "memory context", ["model.gradient_checkpointing=true"]),
        ("fsdp2", "mempo", ["optimizer.share_prompts=false", "trainer.sharding.reduce_once=true"]),
        ("fsdp2", "mempo", ["trainer.sharding.replicas=2"]),
        ("fsdp2", "memory context", ["optimizer.pack_rows=true"]),
        ("ddp", "mempo", ["optimizer.pack_rows=true", "optimizer.share_prompts=false"]),
        (
            "fsdp2",
            "temperature",
            ["trainer.sharding.reshard_after_forward=false", "optimizer.fused=true", UNTIED],
        ),
    ],
)
def test_prime_rl_2562_verl_5366_two_uneven_processes_give_the_gradient_of_one(
    strategy: str, variant: str, settings: list[str], tmp_path: Path
) -> None:
    """One process has more rows and more micro-batches than the other; they compute prompts once
    unless told otherwise."""
    program = ROOT / "tests" / "programs" / "gradient_run.py"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), strategy, variant, *settings],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    config = compose("train", VARIANTS[variant])
    model, reference, groups = make_case(config, tied=UNTIED not in settings)
    exact, exact_reference = copy.deepcopy(model).double(), copy.deepcopy(reference).double()
    expected = expected_gradient(exact, exact_reference, groups, config)
    before = flat(dict(model.named_parameters()))
    norms = three_steps(model, reference, groups, config)
    alone = flat(dict(model.named_parameters()))
    world = 2
    shares: list[bool] = []
    for rank in range(world):
        found = torch.load(tmp_path / f"gradient-{rank}.pt", weights_only=True)
        assert_same_gradient(found, expected)
        after = torch.load(tmp_path / f"after-{rank}.pt", weights_only=True)
        shares.append(after["shares"])
        assert after["packs"] == ("optimizer.pack_rows=true" in settings)
        # Embedding, output layer and each of two layers by themselves, and the rest.
        parts = 5 if UNTIED in settings else 3
        assert after["parts"] == (parts if strategy == "fsdp2" else 0)
        assert after["norms"] == pytest.approx(norms, rel=1e-5)
        together = flat(after["weights"])
        assert float((together - alone).norm() / alone.norm()) < 1e-5
        assert float((together - alone).norm() / (alone - before).norm()) < 1e-3
    assert any(shares) == ("optimizer.share_prompts=false" not in settings)


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].detach().flatten().double() for name in sorted(weights)])


def three_steps(
    model: Any, reference: Any, groups: list[list[Trajectory]], config: Config
) -> list[float]:
    """Three steps of one process, by a loop of its own; the gradient norms before clipping."""
    settings = config.optimizer
    module = MemPOModule(model, config, reference if config.loss.kl_coefficient > 0 else None)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=settings.betas, weight_decay=settings.weight_decay
    )
    norms: list[float] = []
    for step in range(STEPS):
        own_gradient(module, groups, config, budget=10_000)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        assert settings.max_grad_norm == 1.0
        share = learning_rate_factor(settings, step, config.trainer.max_epochs)
        for group in optimizer.param_groups:
            group["lr"] = share * settings.learning_rate
        optimizer.step()
    return norms
