"""What the supervised start of a configuration would do, for the dry run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mempo.command.memory_estimate import GIB, MemoryPerDevice, estimate_memory
from mempo.command.model_sizes import ModelSizes
from mempo.config import Config


@dataclass(frozen=True)
class SupervisedPlan:
    """``source`` is what it learns from, in words; ``trained`` counts parameters. ``memory`` is
    that of the stage: the engine is not there yet."""

    source: str
    steps: int
    batch_size: int
    adapters: bool
    trained: int
    memory: MemoryPerDevice

    @property
    def total(self) -> int:
        """Bytes on one device."""
        return self.memory.context + self.memory.training


def plan_supervised(config: Config, sizes: ModelSizes, world_size: int) -> SupervisedPlan | None:
    """``None`` where there is no supervised start."""
    sft = config.sft
    if not sft.enabled:
        return None
    adapters = sft.train == "adapters"
    stage = dataclasses.replace(
        config,
        model=config.model if adapters else dataclasses.replace(config.model, lora=None),
        optimizer=dataclasses.replace(config.optimizer, micro_batch_tokens=sft.micro_batch_tokens),
        loss=dataclasses.replace(config.loss, kl_coefficient=0.0),
    )
    return SupervisedPlan(
        source="the generated world" if sft.source == "world" else ", ".join(sft.paths),
        steps=sft.steps,
        batch_size=sft.batch_size,
        adapters=adapters,
        trained=sizes.adapters if adapters else sizes.parameters.total,
        memory=estimate_memory(
            stage, sizes.architecture, world_size, sizes.parameters, sizes.adapters or None
        ),
    )


def supervised_fits(plan: SupervisedPlan | None, config: Config, usable: float) -> bool:
    """Whether it fits into the share ``usable`` of a card; True on CPUs."""
    on_cpu = config.trainer.accelerator == "cpu"
    return plan is None or on_cpu or plan.total <= usable * config.trainer.card_gib * GIB


def supervised_lines(plan: SupervisedPlan | None) -> str:
    """One sentence for the printed plan."""
    if plan is None:
        return (
            "Supervised start: none (sft.enabled=false). sft=file sft.path=<file of trajectories> "
            "begins with your own (sft.source=file)."
        )
    what = "the adapters, merged before RL," if plan.adapters else "all weights,"
    return (
        f"Supervised start: {plan.steps} steps of {plan.batch_size} texts of {plan.source} train "
        f"{what} {plan.trained:,} parameters, in {plan.total / GIB:,.2f} GiB a device."
    )


def supervised_remedy(plan: SupervisedPlan, lora: bool, card_gib: float) -> str:
    """What to change where it does not fit."""
    how = "sft.train=adapters" if lora else "lora=default sft.train=adapters, or trainer=fsdp2"
    return (
        f"The supervised start does not fit a card of {card_gib:g} GiB: {plan.total / GIB:,.2f} "
        f"GiB a device. Set {'trainer=fsdp2' if plan.adapters else how}, or lower "
        "sft.micro_batch_tokens."
    )
