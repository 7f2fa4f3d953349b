"""How the policy is trained: optimizer, supervised start and Lightning's trainer."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.lightning_switches import LightningConfig, other_strategy
from mempo.config.paths import SettingPath
from mempo.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig:
    """AdamW and how an epoch's trajectories are split. ``pack_rows``: no padding is computed, and
    ``fused``: a step is one kernel, both in either stage (``None``: on GPUs)."""

    learning_rate: float = Field(default=1e-6, gt=0.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_epochs: int = Field(default=0, ge=0)
    decay: Literal["none", "linear"] = "none"
    decay_epochs: int | None = Field(default=None, ge=1)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    updates_per_epoch: int = Field(default=1, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    share_prompts: bool = True
    pack_rows: bool | None = None
    fused: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> OptimizerConfig:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"optimizer.betas={list(self.betas)}: both lie in [0, 1)")
        return self


@dataclass(frozen=True, config=STRICT)
class SftConfig:
    """The supervised start (``mempo/training/supervised.py``).

    ``source`` ``world`` generates demonstrations: ``trajectory_share``, ``round_share`` and
    ``answer_share`` say how many of them are whole trajectories, single rounds after the memory
    context, and answers straight after a memory or a full history. ``file`` reads the trajectories
    of ``path``: ``min_reward`` is the reward that they must exceed, ``may_break`` the format rules
    that they need not keep, ``context`` what a round is trained to see (``None``: as
    ``rollout.context``), ``max_tokens`` the length that they are cut to (``None``: the model's).
    ``train`` says which weights the stage trains, where there are adapters.
    """

    enabled: bool = True
    source: Literal["world", "file"] = "world"
    train: Literal["all", "adapters"] = "all"
    steps: int = Field(default=1000, ge=1)
    batch_size: int = Field(default=32, ge=1)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0.0)
    warmup_steps: int = Field(default=50, ge=0)
    weight_decay: float = Field(default=0.01, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    worlds: int = Field(default=64, ge=1)
    objectives: tuple[int, int] | None = None
    demonstrations: int = Field(default=20000, ge=1)
    memory_form: Literal["notes", "checklist"] = "notes"
    drop_probability: float = Field(default=0.35, ge=0.0, lt=1.0)
    trajectory_share: float = Field(default=0.45, ge=0.0, le=1.0)
    round_share: float = Field(default=0.35, ge=0.0, le=1.0)
    answer_share: float = Field(default=0.20, ge=0.0, le=1.0)
    path: SettingPath | tuple[SettingPath, ...] | None = None
    min_reward: float | None = None
    may_break: tuple[Annotated[int, Field(ge=1, le=8)], ...] = ()
    skip_bad_rows: bool = False
    context: Literal["full", "memory", "both"] | None = None
    max_tokens: int | None = Field(default=None, ge=16)
    heldout_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    seed: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """``path`` as a list."""
        if self.path is None:
            return ()
        return (self.path,) if isinstance(self.path, str) else self.path

    @model_validator(mode="after")
    def _check(self) -> SftConfig:
        if self.source == "file" and not self.paths:
            raise ValueError(
                "sft.path is empty: sft.source=file needs sft.path=<file of trajectories> "
                "(docs/cold_start.md)"
            )
        if self.source == "world" and self.paths:
            raise ValueError(
                f"sft.path={', '.join(self.paths)} is not read with sft.source=world: choose "
                "sft=file, or leave the path out"
            )
        if self.source == "world" and self.heldout_share > 0:
            raise ValueError(
                f"sft.heldout_share={self.heldout_share:g} is not read with sft.source=world: "
                "leave it at 0"
            )
        if self.source == "file" and not self.enabled:
            raise ValueError(
                "sft.source=file is not read with sft.enabled=false: choose sft=file, or set "
                "sft.enabled=true"
            )
        total = self.trajectory_share + self.round_share + self.answer_share
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"sft.trajectory_share + sft.round_share + sft.answer_share is {total:g}: "
                "make them add up to 1"
            )
        if self.objectives is not None and not 1 <= self.objectives[0] <= self.objectives[1]:
            raise ValueError(
                f"sft.objectives={list(self.objectives)}: give the fewest and the most questions "
                "of a demonstration, such as [1,10], or null for data.objectives"
            )
        return self


@dataclass(frozen=True, config=STRICT)
class ShardingConfig:
    """How ``trainer=fsdp2`` trades memory for exchanges.

    ``reshard_after_forward``: gathered weights are given up after a layer's forward pass and
    gathered again for its backward pass. ``reduce_once``: gradients are reduced in an optimizer
    step's last micro-batch alone; until then every process holds all of them in float32.
    ``replicas``: copies of the sharded model; each is sharded over as many processes that follow
    each other, so that with one copy a machine only gradients cross the network.
    """

    reshard_after_forward: bool = True
    reduce_once: bool = False
    replicas: int = Field(default=1, ge=1)


@dataclass(frozen=True, config=STRICT)
class TrainerConfig:
    """Lightning's trainer. ``strategy`` is ``auto``, ``ddp`` or ``fsdp2``; ``timeout_s`` is how
    long a process waits for another in an exchange; ``card_gib`` is the memory that a plan is held
    against, ``card`` the name of the GPU for its hours."""

    strategy: str = "auto"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = "auto"
    num_nodes: int = Field(default=1, ge=1)
    timeout_s: int = Field(default=1800, ge=1)
    card_gib: float = Field(default=80.0, gt=0.0)
    card: str | None = None
    max_epochs: int = Field(default=100, ge=1)
    checkpoint_every: int = Field(default=10, ge=1)
    keep_last: int = Field(default=2, ge=1)
    lightning: LightningConfig = field(default_factory=LightningConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)

    @model_validator(mode="after")
    def _check(self) -> TrainerConfig:
        if self.strategy not in ("auto", "ddp", "fsdp2"):
            raise ValueError(other_strategy(self.strategy))
        usual = vars(ShardingConfig())
        changed = [name for name, value in vars(self.sharding).items() if value != usual.get(name)]
        if self.strategy != "fsdp2" and changed:
            raise ValueError(
                f"trainer.sharding.{changed[0]} is not read with trainer.strategy={self.strategy}: "
                "choose trainer=fsdp2, or leave it as it is"
            )
        if self.devices == "auto" or self.devices >= 1:
            return self
        if self.devices == -1 and self.accelerator != "cpu":
            return self
        raise ValueError(
            f"trainer.devices={self.devices}: give the number of processes, at least 1, or auto "
            "(-1 is all GPUs)"
        )
