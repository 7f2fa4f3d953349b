"""Short runs whose processes have uneven shares of everything, and a policy that needs no engine.

What the policy says is worked out from what it is shown and from the sample's number, so that one
process and two collect the same trajectories: some answer at once, some write no memory, some never
act, some go on to the last round.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from mempo.agent.conversation import Conversation
from mempo.data.tasks import TaskSets
from mempo.engine.interface import Sampling
from mempo.trajectory import Objective, Task
from tests.support.fakes import FakeRetriever, ScriptedEngine
from tests.support.pairs import Case, covering_cases
from tests.support.small_tokenizers import make_tokenizer

FACTORS: Final = {
    "processes": ("ddp", "fsdp2", "shared"),
    "adapter": ("none", "lora"),
    "goes_on": ("no", "resumed", "stopped"),
    "context": ("full", "memory", "trajectory"),
    "scoring": ("tree", "padded", "best", "off"),
    "updates": ("1", "2"),
    "tasks": ("1", "3"),
    "overlap": ("false", "true"),
    "kl": ("0", "0.1"),
    "start": ("tied", "untied"),
    "checkpointing": ("false", "true"),
}
"""``tasks`` are those of an epoch, and of the evaluation: with one, the second process has none."""

CASES: Final[list[Case]] = covering_cases(FACTORS, seed=3)
EPOCHS: Final = 2
_PLACE: Final = "Ann of Rome"


def overrides(case: Case, *, alone: bool) -> list[str]:
    """The settings of a case, on one process (``alone``) or on two."""
    memory = case["context"] != "full"
    overlap = case["overlap"] == "true" and case["processes"] != "shared"  # refused there
    scoring = {
        "tree": ["scoring.method=tree"],
        "padded": ["scoring.method=padded"],
        "best": ["scoring.gold=best"],
        "off": ["algorithm=grpo"],
    }
    processes = {
        "ddp": ["trainer=ddp"],
        "fsdp2": ["trainer=fsdp2"],
        "shared": ["trainer=ddp", "engine.tensor_parallel=2"],
    }
    together = [*processes[case["processes"]], "trainer.devices=2", "trainer.accelerator=cpu"]
    return [
        *(["trainer=cpu"] if alone else together),
        *scoring[case["scoring"]],
        "model=pretrained",
        "model.path=unused",
        "model.dtype=float32",
        "model.prompt_template=compact",
        "model.system_prompt=Answer.",
        f"model.gradient_checkpointing={case['checkpointing']}",
        *(["lora=default", "model.lora.rank=2"] if case["adapter"] == "lora" else []),
        "sft=none",
        "logger=none",
        "callbacks.progress_bars=false",
        f"rollout.context={'memory' if memory else 'full'}",
        f"scoring.history={'trajectory' if case['context'] == 'trajectory' else 'visible'}",
        "scoring.batch_tokens=700",
        "rollout.group_size=4",
        f"rollout.tasks_per_epoch={case['tasks']}",
        f"rollout.overlap={str(overlap).lower()}",
        "rollout.max_rounds=4",
        f"optimizer.updates_per_epoch={case['updates']}",
        "optimizer.micro_batch_tokens=900",
        "optimizer.learning_rate=1e-3",
        f"loss.kl_coefficient={case['kl']}",
        f"evaluation.tasks={case['tasks']}",
        "evaluation.max_rounds=3",
        "evaluation.bootstrap_samples=0",
        f"trainer.max_epochs={EPOCHS}",
        "trainer.checkpoint_every=1",
    ]


def write_start(folder: Path, *, tied: bool) -> None:
    """A small model from a seed, with its tokenizer."""
    tokenizer = make_tokenizer("tags")
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
            initializer_range=0.1,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def task_sets() -> TaskSets:
    """Six tasks to train on, two of which are answered at once, and three held-out ones."""

    def task(name: str) -> Task:
        return Task(name, (Objective(f"Who is {name}?", ("Ann", "Bob", "Rome")),))

    train = [task(name) for name in ("quick1", "slow1", "slow2", "quick2", "slow3", "slow4")]
    pages = FakeRetriever({_PLACE: "Ann was born in Rome. Bob is a friend of Ann."})
    return TaskSets(train, [task(f"heldout{i}") for i in range(3)], {"default": pages})


def what_it_says(shown: str, sample: int) -> str:
    """A round's text after what the policy is shown."""
    rng = random.Random(f"{sample}|{shown}")
    answer = rng.choice(("Ann", "Bob", "the river", "Ann"))
    if "quick" in shown or rng.random() < 0.2:
        return f"<think>so</think><answer>{answer}</answer>"
    if rng.random() < 0.1:
        return "I do not know"
    words = " ".join(rng.choices(("Ann", "lives", "in", "Rome", "Bob"), k=rng.randint(1, 12)))
    prefilled = shown.endswith("<mem>")
    memory = f"<mem>{words}</mem>" if prefilled or rng.random() < 0.7 else ""
    act = f"<search>{_PLACE}</search>" if rng.random() < 0.8 else f"<access>{_PLACE}</access>"
    return memory.removeprefix("<mem>" if prefilled else "") + f"<think>{words}</think>{act}"


class ShownEngine(ScriptedEngine):
    """Samples ``what_it_says``. ``synced`` holds the sum of the weights' sizes of every sync."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation, [])
        self.synced: list[float] = []

    def submit(
        self, key: str, prompt_ids: list[int], max_tokens: int, seed: int, sampling: Sampling
    ) -> None:
        sample = int(key.rpartition("/")[2]) if "/" in key else 0
        self._scripts = [what_it_says(self._conversation.decode(prompt_ids), sample)]
        self._counts.pop(key, None)
        super().submit(key, prompt_ids, max_tokens, seed, sampling)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.synced.append(sum(float(value.double().abs().sum()) for _, value in weights))

    def sleep(self) -> None:
        """Has no memory to give back."""

    def close(self) -> None:
        """Has nothing to release."""
