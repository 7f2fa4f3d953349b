"""A whole epoch step: rollout, memory scoring and update, through the trainer.

    python benchmarks/step.py tools --model tiny --peer-seconds 15

Two shapes:

- single: 64 completions (8 prompts, 8 each) of 256 tokens after 256; with ``--model smollm2`` 32
  completions (4 prompts) of 128 in bfloat16. One round, so there is no memory to score.
- tools: 16 trajectories (2 prompts, 8 each) of prompt 600 and 4 rounds of 100 policy tokens, with
  200 observed tokens between them and tools of 20 ms. Rounds after the first start with a given
  ``<mem>`` (part of the 200), end with a scripted search, and their memories are scored.

``RolloutDataModule``, ``MemoryRewardCallback`` and ``MemPOModule`` do what they do in training;
only the sampled lengths are forced and the tools scripted (``benchmarks/scripted.py``), and every
other sample of a task is rewarded, so that no group is constant. The first epoch warms up and is
not counted. A step is the time from the end of one epoch to the end of the next: it holds the
weight sync, the rollout, the scoring and the update with its optimizer step.

After every epoch the numbers of trajectories, rounds, policy tokens and memory rewards are
checked, and that the weights have moved. Prints one JSON line, last: ``trajectories_per_minute``,
``seconds_step`` and the seconds of each phase (medians), and, with ``--peer-seconds S`` (a step of
another trainer at the same shape, measured in the same hour), ``ratio``: S over ``seconds_step``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from benchmarks.common import Words, argument_parser, print_result, print_seconds, save_model
from benchmarks.scripted import ForcedEngine, ScriptedRetriever, observation_tokens
from callbacks.memory_reward import MemoryRewardCallback
from mempo.agent.conversation import Conversation
from mempo.agent.prompts import load_template
from mempo.agent.protocol import MEMORY_OPEN
from mempo.command.cli import compose
from mempo.config import Config
from mempo.data.tasks import TaskSets
from mempo.models.loading import load_policy
from mempo.runtime.library_warnings import quiet_libraries
from mempo.training.datamodule import RolloutDataModule
from mempo.training.module import MemPOModule
from mempo.trajectory import Ending, Objective, Task, Trajectory

PHASES = ("sync", "rollout", "scoring", "update")


@dataclass(frozen=True)
class Shape:
    """What an epoch holds; lengths in tokens."""

    prompts: int
    generations: int
    prompt: int
    rounds: int
    generated: int
    observed: int = 0
    tool_ms: float = 0.0
    dtype: str = "float32"


SHAPES = {
    ("single", "tiny"): Shape(8, 8, 256, 1, 256),
    ("single", "smollm2"): Shape(4, 8, 256, 1, 128, dtype="bfloat16"),
    ("tools", "tiny"): Shape(2, 8, 600, 4, 100, 200, 20.0),
    ("tools", "smollm2"): Shape(2, 8, 600, 4, 100, 200, 20.0, dtype="bfloat16"),
}
CONFIGURATIONS = {"tiny": "tiny", "smollm2": "smollm2_135m"}


def main(argv: Sequence[str] | None = None) -> None:
    quiet_libraries()
    arguments = parse(argv)
    shape = Shape(**{name: getattr(arguments, name) for name in Shape.__dataclass_fields__})
    with tempfile.TemporaryDirectory() as folder:
        _, tokenizer = save_model(arguments.model, folder)
        config = compose(overrides=overrides(arguments, shape), run_dir=folder)
        model = load_policy(folder, config)
        module = MemPOModule(model, config)
        conversation = Conversation(tokenizer, config.model.system_prompt)
        tasks = scripted_tasks(config, conversation, shape, arguments.seed)
        datamodule = ScriptedDataModule(config, folder, tokenizer, tasks, shape)
        clock = Clock(datamodule, shape)
        trainer = L.Trainer(
            precision="bf16-mixed" if shape.dtype == "bfloat16" else "32-true",
            accelerator="auto",
            devices=1,
            use_distributed_sampler=False,
            max_epochs=config.trainer.max_epochs,
            reload_dataloaders_every_n_epochs=1,
            callbacks=[MemoryRewardCallback(config), clock],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=datamodule)
    report(arguments, shape, clock)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, model="tiny")
    parser.add_argument("case", choices=["single", "tools"])
    parser.set_defaults(dtype=None)
    for name, kind in Shape.__annotations__.items():
        if name != "dtype":
            number = float if kind == "float" else int
            parser.add_argument(f"--{name.replace('_', '-')}", type=number, help="of the shape")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192, help="of the update")
    parser.add_argument("--scoring-tokens", type=int, default=16384, help="of a scoring pass")
    parser.add_argument("--peer-seconds", type=float, help="a step of another trainer")
    arguments = parser.parse_args(argv)
    for name, value in vars(SHAPES[arguments.case, arguments.model]).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def overrides(arguments: argparse.Namespace, shape: Shape) -> list[str]:
    """The configuration of the shape."""
    one_round = ["memory.weight=0", "scoring.enabled=false"] if shape.rounds == 1 else []
    return [
        f"model={CONFIGURATIONS[arguments.model]}",
        f"model.dtype={shape.dtype}",
        "model.prompt_template=compact",
        "logger=none",
        f"seed={arguments.seed}",
        f"trainer.max_epochs={arguments.repeats + 1}",
        "callbacks.progress_bars=false",
        f"rollout.group_size={shape.generations}",
        f"rollout.tasks_per_epoch={shape.prompts}",
        f"rollout.max_rounds={shape.rounds}",
        f"rollout.max_round_tokens={shape.generated}",
        "rollout.max_response_tokens=1000000",
        "rollout.max_observation_tokens=1000000",
        "rollout.prefill_memory=true",
        "retriever.passage_chars=1000000",
        f"optimizer.micro_batch_tokens={arguments.micro_batch_tokens}",
        f"scoring.batch_tokens={arguments.scoring_tokens}",
        *one_round,
    ]


def scripted_tasks(config: Config, conversation: Conversation, shape: Shape, seed: int) -> TaskSets:
    """Tasks whose prompts have the wanted length, and tools whose results have it."""
    words = Words(conversation.tokenizer, seed)
    template = load_template(config.model.prompt_template)

    def prompt_length(question: str) -> int:
        return len(conversation.prompt_ids(template.render(question=question)))

    observation = ""
    if shape.rounds > 1:
        given = len(conversation.encode(MEMORY_OPEN))
        observation = words.fitted(
            lambda text: observation_tokens(conversation, text) + given, shape.observed
        )
    tasks = [
        Task(
            str(index),
            (Objective(words.fitted(prompt_length, shape.prompt), ("Ann Bel",)),),
        )
        for index in range(shape.prompts)
    ]
    tools = ScriptedRetriever(observation, shape.tool_ms / 1000)
    return TaskSets(tasks, [], {"default": tools})


class ScriptedDataModule(RolloutDataModule):
    """The data module over an engine with forced lengths; every other sample is rewarded."""

    def __init__(
        self, config: Config, folder: str, tokenizer: Any, tasks: TaskSets, shape: Shape
    ) -> None:
        super().__init__(config, folder, tokenizer, tasks)
        self._shape = shape

    def setup(self, stage: str) -> None:
        if self._engine is None:
            self._engine = ForcedEngine(
                self._model_folder,
                self.config.engine,
                self.config.model.dtype,
                self.conversation,
                self._ending,
            )

    def _roll_out(self, *arguments: Any, **named: Any) -> list[Trajectory]:
        trajectories = super()._roll_out(*arguments, **named)
        for trajectory in trajectories:
            trajectory.reward = float(trajectory.sample % 2)
        return trajectories

    def _ending(self, key: str, number: int) -> str:
        memory = "</mem>" if number > 1 else ""
        action = "<search>x</search>" if number < self._shape.rounds else "<answer>x</answer>"
        return f"{memory}<think>x</think>{action}"


class Clock(Callback):
    """Times and checks every epoch."""

    def __init__(self, datamodule: ScriptedDataModule, shape: Shape) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in ("step", *PHASES)}
        self._datamodule = datamodule
        self._shape = shape
        self._last_end: float | None = None
        self._weights: Tensor | None = None

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = time.perf_counter()
        assert isinstance(pl_module, MemPOModule)
        if self._last_end is not None:
            phases = self._datamodule.phases.seconds | pl_module.phases.seconds
            for name in PHASES:
                self.seconds[name].append(phases[name])
            self.seconds["step"].append(now - self._last_end)
        self._check(next(pl_module.model.parameters()))
        self._last_end = time.perf_counter()

    def _check(self, weights: Tensor) -> None:
        shape, trajectories = self._shape, self._datamodule.trajectories
        wanted = (shape.rounds, shape.rounds * shape.generated, shape.prompt, Ending.ANSWERED)
        if len(trajectories) != shape.prompts * shape.generations:
            raise SystemExit(f"there are {len(trajectories)} trajectories")
        for trajectory in trajectories:
            length = len(trajectory.sequences[-1])
            found = (
                len(trajectory.rounds),
                trajectory.policy_tokens,
                trajectory.prompt_length,
                trajectory.ending,
            )
            scored = [round_.memory_reward is not None for round_ in trajectory.rounds]
            all_scored = scored == [False] + [True] * (shape.rounds - 1)
            full = shape.prompt + wanted[1] + (shape.rounds - 1) * shape.observed
            if found != wanted or length != full or not all_scored:
                raise SystemExit(f"{trajectory.name} is not what was scripted")
        if self._weights is not None and bool((self._weights == weights).all()):
            raise SystemExit("the weights have not moved")
        self._weights = weights.detach().clone()


def report(arguments: argparse.Namespace, shape: Shape, clock: Clock) -> None:
    print_seconds(clock.seconds)
    middle = {name: statistics.median(values) for name, values in clock.seconds.items()}
    trajectories = shape.prompts * shape.generations
    peer = arguments.peer_seconds
    print_result(
        "step",
        arguments,
        {
            "trajectories_per_minute": 60.0 * trajectories / middle["step"],
            "ratio": None if peer is None else peer / middle["step"],
            **{f"seconds_{name}": value for name, value in middle.items()},
        },
    )


if __name__ == "__main__":
    main()
