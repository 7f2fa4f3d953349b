"""Tree scoring gives the numbers of padded scoring (specification section 6)."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mempo.config import ScoringConfig
from mempo.learning.old_logprobs import write_old_logprobs
from mempo.learning.scored_rows import ScoredText
from mempo.learning.scoring import MemoryScorer
from mempo.learning.shared_prefix import unsupported_reason
from mempo.learning.tree_scoring import Branch, Tree, plan_passes, tree_logprobs
from mempo.trajectory import Objective, Round, SpanKind, Task, TokenSequence, Trajectory

VOCABULARY = 50
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}


def make_model(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    classes: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "llama": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 2}),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"num_key_value_heads": 1, "head_dim": 8}),
        "mistral": (MistralForCausalLM, MistralConfig, {"num_key_value_heads": 2}),
    }
    model_class, config_class, own = classes[kind]
    return model_class(config_class(**SIZES, **own, **more)).eval()


def make_trajectories(
    seed: int, count: int, rounds: int, memory_context: bool = False
) -> list[Trajectory]:
    """Random trajectories of one task; the second round of every third has no memory, and every
    fourth is a copy of the one before it. In memory context a sequence holds the round before it,
    except in every fifth trajectory, where it begins with other tokens after the prompt."""
    rng = random.Random(seed)

    def some(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    prompt, made = some(5, 9), []
    for sample in range(count):
        if sample % 4 == 3:
            rng.seed(seed + sample - 1)
        else:
            rng.seed(seed + sample)
        task = Task("t", (Objective("q", ("Ann", "Bob")),))
        trajectory = Trajectory(task, 0, sample, len(prompt))
        before: list[int] = []
        for number in range(1, rounds + 1 - sample % 2):
            if memory_context or number == 1:
                trajectory.sequences.append(TokenSequence())
                trajectory.sequences[-1].append_context([*prompt, *before])
            sequence = trajectory.sequences[-1]
            start = len(sequence)
            memory = some(2, 7) if number > 1 and (number, sample % 3) != (2, 2) else []
            rest = some(3, 6)
            for ids, kind in ((memory, SpanKind.MEMORY), (rest, SpanKind.ACTION)):
                sequence.append_policy(ids, [-1.0] * len(ids), [kind] * len(ids))
            trajectory.rounds.append(
                Round(
                    number=number,
                    sequence=len(trajectory.sequences) - 1,
                    snapshot_length=start,
                    start=start,
                    end=len(sequence),
                    text="",
                    memory_span=(start, start + len(memory)) if memory else None,
                )
            )
            before = [*memory, *rest, *some(4, 12)] if sample % 5 else some(0, 6)
            if not memory_context:
                sequence.append_context(some(4, 12))
        made.append(trajectory)
    return made


@pytest.fixture(autouse=True)
def golds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scored texts without a tokenizer."""
    texts = {
        "Ann": ScoredText((7, 8, 9, 10), (0, 1, 1, 0)),
        "Bob": ScoredText((7, 20, 21, 22, 10, 11), (0, 1, 1, 1, 0, 0)),
    }
    monkeypatch.setattr(
        "mempo.learning.scoring.encode_answer", lambda tokenizer, config, gold: texts[gold]
    )


@pytest.mark.parametrize("memory_context", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 90, 100_000])
def test_the_memory_before_as_baseline_in_both_methods(
    batch_tokens: int, memory_context: bool
) -> None:
    """Trajectories whose first scored round is the second or the third, with and without the
    log-probabilities of their own tokens."""
    model, found = make_model("qwen2"), []
    ways: list[tuple[Any, float | None]] = [("padded", None), ("tree", None), ("tree", 0.7)]
    for method, temperature in ways:
        trajectories = make_trajectories(3, 7, 5, memory_context)
        config = ScoringConfig(method=method, batch_tokens=batch_tokens, baseline="previous")
        MemoryScorer(None, config).score(model, trajectories, old_temperature=temperature)
        scored = [one for member in trajectories for one in member.scored_rounds()]
        found.append([value for one in scored for value in (one.p_previous, one.p_mem)])
    assert {next(iter(member.scored_rounds())).number for member in trajectories} == {2, 3}
    assert len(found[0]) > 40
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    assert found[2] == pytest.approx(found[0], abs=1e-5)


def scores(
    model: Any, trajectories: list[Trajectory], method: Any, **settings: Any
) -> list[tuple[float, float]]:
    MemoryScorer(None, ScoringConfig(method=method, **settings)).score(model, trajectories)
    found = [(r.p_full, r.p_mem) for t in trajectories for r in t.scored_rounds()]
    assert found
    return [(full, memory) for full, memory in found if full is not None and memory is not None]


@pytest.mark.parametrize("memory_context", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 60, 200, 100_000])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("qwen3", {"attn_implementation": "eager"}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_tree_equals_padded(
    kind: str, more: dict[str, Any], batch_tokens: int, memory_context: bool
) -> None:
    model = make_model(kind, **more)
    assert unsupported_reason(model) is None
    trajectories = make_trajectories(3, 7, 5, memory_context)
    padded = scores(model, trajectories, "padded", gold="best")
    tree = scores(model, trajectories, "tree", gold="best", batch_tokens=batch_tokens)
    assert len({round(full, 6) for full, _ in padded}) > 10
    for expected, found in zip(padded, tree, strict=True):
        assert found == pytest.approx(expected, rel=2e-5)


def test_log_probabilities_equal_those_of_rows_of_their_own() -> None:
    """Every branch against a plain forward over its whole row."""
    model = make_model("qwen2")
    rng = random.Random(1)
    ids = [rng.randrange(VOCABULARY) for _ in range(40)]
    branches = tuple(
        Branch(prefix, tuple(rng.randrange(VOCABULARY) for _ in range(size)), scored_from)
        for prefix, size, scored_from in ((5, 6, 1), (40, 9, 4), (17, 3, 2), (5, 6, 5), (1, 2, 1))
    )
    short = Tree(tuple(ids[:9]), (Branch(9, (1, 2, 3), 1), Branch(4, (4, 5), 1)))
    trees = [Tree(tuple(ids), branches, (4, 20, 21)), short]
    done: list[int] = []
    for budget in (1, 30, 1000):
        found = tree_logprobs(model, trees, budget, 0.7, done.append)
        for tree, of_tree in zip(trees, found, strict=True):
            for branch, values in zip(tree.branches, of_tree.branches, strict=True):
                row = [*tree.ids[: branch.prefix], *branch.ids]
                scored = range(branch.prefix + branch.scored_from, len(row))
                assert values.tolist() == pytest.approx(plain(model, row, scored), abs=1e-4)
            expected = plain(model, tree.ids, tree.own, temperature=0.7)
            assert of_tree.own.tolist() == pytest.approx(expected, abs=1e-4)
    assert sum(done) == 3 * 7


@torch.no_grad()
def plain(
    model: Any, ids: Sequence[int], places: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of the tokens at ``places`` from one forward over a row."""
    logits = model(input_ids=torch.tensor([list(ids)])).logits[0] / temperature
    return [float(logits.log_softmax(-1)[place - 1, ids[place]]) for place in places]


@pytest.mark.parametrize("own", [(), (61, 70), (79, 80)])
def test_a_shared_start_is_computed_once_and_changes_no_number(own: tuple[int, ...]) -> None:
    """Four sequences with 60 tokens in common: three passes would cost 180 more."""
    model = make_model("qwen2")
    rng = random.Random(4)
    start = tuple(rng.randrange(VOCABULARY) for _ in range(60))
    trees = []
    for number in range(4):
        rest = (number, *(rng.randrange(VOCABULARY) for _ in range(20 + number)))
        branches = (Branch(3, (1, 2, 3), 1), Branch(60 + number, (4, 5, 6), 2))
        trees.append(Tree(start + rest, branches, own))
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda module, arguments, named: shapes.append(tuple(named["input_ids"].shape)),
        with_kwargs=True,
    )
    found = tree_logprobs(model, trees, 1000, 0.7)
    assert shapes[:2] == [(1, 60), (4, 24)]
    for tree, of_tree in zip(trees, found, strict=True):
        expected = plain(model, tree.ids, tree.own, temperature=0.7)
        assert of_tree.own.tolist() == pytest.approx(expected, abs=1e-4)
        for branch, values in zip(tree.branches, of_tree.branches, strict=True):
            row = [*tree.ids[: branch.prefix], *branch.ids]
            scored = range(branch.prefix + branch.scored_from, len(row))
            assert values.tolist() == pytest.approx(plain(model, row, scored), abs=1e-4)


def test_what_is_shared() -> None:
    def shared(*trees: Tree) -> int:
        (entry,) = plan_passes(trees, 10_000)
        return entry.shared

    long = tuple(range(200))
    assert shared(Tree(long, ())) == 0  # nobody to share with
    assert shared(Tree((*long, 1), ()), Tree((*long, 2), ())) == 200
    assert shared(Tree(long, ()), Tree((*long, 2), ())) == 199  # each keeps a token of its own
    assert shared(Tree((*long, 1), ()), Tree((*long, 2), (), (150,))) == 149
    assert shared(Tree((*long[:150], 1), ()), Tree((*long[:150], 2), ()), Tree(long, ())) == 150
    assert shared(Tree(long[:60], ()), Tree(long[:60], ())) == 0  # too little for a pass


@pytest.mark.parametrize("memory_context", [False, True])
@pytest.mark.parametrize("batch_tokens", [200, 100_000])
def test_keys_and_values_are_cropped_for_shorter_prefixes(
    batch_tokens: int, memory_context: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit at which each such step is worth a pass."""
    model = make_model("llama")
    padded = scores(model, make_trajectories(3, 7, 6, memory_context), "padded")
    monkeypatch.setattr("mempo.learning.tree_scoring._WORTH_A_CROP", 0)
    found = make_trajectories(3, 7, 6, memory_context)
    tree = scores(model, found, "tree", batch_tokens=batch_tokens)
    for one, other in zip(tree, padded, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_what_stands_behind_a_shorter_prefix_has_a_pass_of_its_own() -> None:
    tree = Tree(
        (0,) * 4000,
        (
            *(Branch(100, (0,) * 50, 1) for _ in range(20)),  # memories behind the prompt
            *(Branch(prefix, (0,) * 10, 1) for prefix in (1000, 2000, 3000, 4000)),
        ),
    )
    (entry,) = plan_passes([tree], 10_000)
    prefixes = [[tree.branches[slot.branch].prefix for slot in chunk] for chunk in entry.chunks]
    # Behind 4000 tokens first. At 1000 the rest has 1,010 tokens, which need not see 3000 of those:
    # 3 million pairs. Behind 1000 the memories' 1,000 tokens would see 900 in vain, 0.9 million
    # pairs, which is not worth another pass.
    assert prefixes == [[4000, 3000, 2000], [1000, *[100] * 20]]
    short = Tree(tree.ids[:400], (*tree.branches[:20], Branch(400, (0,) * 10, 1)))
    (entry,) = plan_passes([short], 10_000)
    assert len(entry.chunks) == 1  # 300,000 pairs


@pytest.mark.parametrize("memory_context", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 200, 100_000])
def test_one_pass_gives_the_old_log_probabilities_too(
    batch_tokens: int, memory_context: bool
) -> None:
    """Against the pass of their own; rewards are those without them."""
    model = make_model("qwen2")
    alone = make_trajectories(3, 7, 5, memory_context)
    rewards = scores(model, alone, "tree")
    write_old_logprobs(model, alone, 0.7, 100)
    for method in ("tree", "padded"):
        together = make_trajectories(3, 7, 5, memory_context)
        config = ScoringConfig(method=method, batch_tokens=batch_tokens)
        MemoryScorer(None, config).score(model, together, old_temperature=0.7)
        found = [(r.p_full, r.p_mem) for t in together for r in t.scored_rounds()]
        for pair, same in zip(found, rewards, strict=True):
            assert pair == pytest.approx(same, rel=2e-5)
        checked = 0
        for one, other in zip(alone, together, strict=True):
            for expected, sequence in zip(one.sequences, other.sequences, strict=True):
                assert sequence.old_logprobs == pytest.approx(expected.old_logprobs, abs=1e-5)
                checked += sum(value != 0 for value in sequence.old_logprobs or ())
        assert checked == sum(trajectory.policy_tokens for trajectory in alone)


def test_a_memory_context_is_read_off_the_next_sequence() -> None:
    """In memory-context rollouts prompt and memory begin the next round's sequence: only the
    scored text is left to compute."""
    scorer = MemoryScorer(None, ScoringConfig())
    rows = scorer.rows(make_trajectories(3, 5, 5, memory_context=True))
    memories = [row for row in rows if row.is_memory]
    assert {len(row.own) for row in memories} > {1}
    for row in memories:
        is_last = row.round.number == max(other.round.number for other in memories
                                          if other.sequence is row.sequence)  # fmt: skip
        assert len(row.own) == 1 or is_last
    full = [row for row in scorer.rows(make_trajectories(3, 5, 5)) if row.is_memory]
    assert all(len(row.own) > 1 for row in full)


def test_with_lora_adapters() -> None:
    model = get_peft_model(
        make_model("llama"),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False),
    ).eval()
    base = scores(make_model("llama"), make_trajectories(3, 4, 4), "padded")
    padded = scores(model, make_trajectories(3, 4, 4), "padded")
    tree = scores(model, make_trajectories(3, 4, 4), "tree")
    assert max(abs(a[0] - b[0]) for a, b in zip(base, padded, strict=True)) > 1e-4
    for expected, found in zip(padded, tree, strict=True):
        assert found == pytest.approx(expected, rel=2e-5)


def test_bfloat16_stays_within_its_own_noise() -> None:
    model = make_model("qwen2")
    exact = scores(model, make_trajectories(3, 4, 4), "padded")
    model = model.to(torch.bfloat16)
    padded = scores(model, make_trajectories(3, 4, 4), "padded")
    tree = scores(model, make_trajectories(3, 4, 4), "tree")
    noise = max(
        abs(a - b) for pair in zip(exact, padded, strict=True) for a, b in zip(*pair, strict=True)
    )
    for expected, found in zip(padded, tree, strict=True):
        assert found == pytest.approx(expected, abs=2 * noise)


def test_a_plan_keeps_its_budget_and_every_branch() -> None:
    rng = random.Random(2)
    trees = [
        Tree(
            (0,) * rng.randint(1, 50),
            tuple(Branch(1, (0,) * rng.randint(2, 20), 1) for _ in range(rng.randint(0, 6))),
        )
        for _ in range(20)
    ]
    for budget in (1, 50, 120, 10_000):
        plan = plan_passes(trees, budget)
        assert sorted(index for entry in plan for index in entry.trees) == list(range(20))
        seen: list[tuple[int, int]] = []
        for entry in plan:
            width = max(len(trees[index].ids) for index in entry.trees)
            assert len(entry.trees) == 1 or len(entry.trees) * width <= budget
            share = budget // len(entry.trees)
            for chunk in entry.chunks:
                seen += [(slot.tree, slot.branch) for slot in chunk]
                for slot in chunk:
                    assert entry.trees[slot.row] == slot.tree
                    size = len(trees[slot.tree].branches[slot.branch].ids)
                    assert slot.column == 0 or slot.column + size <= share
        wanted = [(i, b) for i, tree in enumerate(trees) for b in range(len(tree.branches))]
        assert sorted(seen) == wanted


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (("mistral", {"sliding_window": 8}), "sliding"),
        (("qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"],
                    "use_sliding_window": True, "sliding_window": 8}), "sliding_attention"),
    ],
)  # fmt: skip
def test_models_that_a_tree_cannot_serve_are_scored_padded_with_a_reason(
    model: tuple[str, dict[str, Any]], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    built = make_model(model[0], **model[1])
    expected = scores(built, make_trajectories(3, 3, 4), "padded")
    trajectories = make_trajectories(3, 3, 4)
    scorer = MemoryScorer(None, ScoringConfig(method="tree"))
    with caplog.at_level(logging.WARNING):
        scorer.score(built, trajectories)
        scorer.score(built, trajectories)
    messages = [record.getMessage() for record in caplog.records if "padded" in record.getMessage()]
    assert len(messages) == 1
    assert reason in messages[0]
    found = [(r.p_full, r.p_mem) for t in trajectories for r in t.scored_rounds()]
    for pair, same in zip(found, expected, strict=True):
        assert pair == pytest.approx(same)


def test_ranks_with_fewer_passes_run_empty_ones() -> None:
    model = make_model("qwen2")
    calls: list[int] = []
    model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    tree = Tree((1, 2, 3), (Branch(2, (4, 5), 1),))
    tree_logprobs(model, [tree], 100, passes_on_every_rank=lambda own: own + 3)
    assert len(calls) == 5
    calls.clear()
    tree_logprobs(model, [], 100, passes_on_every_rank=lambda own: 4)
    assert len(calls) == 4


def test_the_model_is_left_as_it_was() -> None:
    model = make_model("qwen2")
    model.config._attn_implementation = "flash_attention_2"  # as on a GPU; sequences not run here
    from mempo.learning.tree_scoring import _maskable_attention

    with _maskable_attention(model) as boolean:
        assert boolean
        assert model.config._attn_implementation == "sdpa"
    assert model.config._attn_implementation == "flash_attention_2"
