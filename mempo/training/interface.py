"""What callbacks, data module and policy module know of one another.

``RolloutDataModule`` and ``MemPOModule`` name these protocols among their base classes, so that
mypy checks both sides. Lightning itself knows neither; the functions below are the only places
where a hook's arguments are taken for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

import lightning.pytorch as pl
import torch
from torch import Tensor

from mempo.agent.conversation import Conversation
from mempo.agent.rollout import Rollout
from mempo.data.tasks import TaskSets
from mempo.engine.shared import EngineGroup
from mempo.runtime.phases import Phases
from mempo.trajectory import Trajectory


class EpochSource(Protocol):
    """The current epoch, as callbacks find it at the data module: this process's trajectories, what
    its phases took (``sync``, ``rollout``, ``scoring``), how many epochs older than the policy the
    weights were that sampled, and, once ``EpochRecordCallback`` has gathered it, the record of the
    epoch over all processes."""

    trajectories: list[Trajectory]
    phases: Phases
    staleness: int
    record: dict[str, float]


class RolloutSource(EpochSource, Protocol):
    """What samples: tasks, the conversation with the policy's tokenizer, and the agent loop over
    this process's engine, one of ``engine_group.count``. What is put into ``before_collecting`` is
    done once, when the weights are there and nothing has been sampled yet; what is put into
    ``when_finished``, where a run goes on that has no epochs left: Lightning calls no
    ``on_train_end`` then, and what it still owes would stay undone."""

    tasks: TaskSets
    conversation: Conversation
    engine_group: EngineGroup
    before_collecting: list[Callable[[], None]]
    when_finished: list[Callable[[], None]]

    @property
    def next_epoch(self) -> int:
        """From 0; in ``before_collecting`` as many as the checkpoint's run had finished."""

    @property
    def rollout(self) -> Rollout: ...

    def sync_weights(self) -> None:
        """Puts the policy's weights into the engine."""


class TrainedPolicy(Protocol):
    """The policy, as callbacks find it at the module: the Hugging Face model, and of the epoch that
    ends the update's metrics over all processes and its phase."""

    model: torch.nn.Module
    epoch_metrics: dict[str, float]
    phases: Phases


class SampledPolicy(Protocol):
    """The policy, as the data module needs it for the engine and for laying out micro-batches."""

    @property
    def packs_rows(self) -> bool:
        """Whether rows are computed end to end, without padding."""

    @property
    def shares_prompts(self) -> bool:
        """Whether a pass may go on from the keys and values of another."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters by Hugging Face name, one at a time."""


def epoch_source(trainer: pl.Trainer) -> EpochSource:
    """The trainer's data module, as most callbacks need it."""
    return rollout_source(trainer)


def rollout_source(trainer: pl.Trainer) -> RolloutSource:
    """The trainer's data module, as callbacks need it that sample or tokenize."""
    found: RolloutSource | None = getattr(trainer, "datamodule", None)
    if found is None:
        raise RuntimeError("the trainer has no data module: call fit with datamodule=")
    return found


def trained_policy(module: pl.LightningModule) -> TrainedPolicy:
    """The module that a hook is given."""
    return cast(TrainedPolicy, module)


def sampled_policy(trainer: pl.Trainer) -> SampledPolicy:
    """The trainer's module."""
    return cast(SampledPolicy, trainer.lightning_module)


def epoch_record(trainer: pl.Trainer) -> dict[str, float]:
    """Every metric of the epoch over all processes, the same on each: the line of
    ``metrics.jsonl``. For callbacks behind ``EpochRecordCallback``, in ``on_train_epoch_end``;
    ``RuntimeError`` before."""
    record = epoch_source(trainer).record
    if record.get("epoch") != trainer.current_epoch:
        raise RuntimeError(
            f"the record of epoch {trainer.current_epoch} is not there yet: read it in "
            "on_train_epoch_end, behind EpochRecordCallback"
        )
    return record
