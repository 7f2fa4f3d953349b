"""Whether a plan fits its card, what vLLM would refuse, and the settings that help most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mempo.agent.engine_room import EngineRoom
from mempo.command.memory_estimate import GIB, MemoryPerDevice
from mempo.config import Config

USABLE = 0.92
"""Share of a card that a plan may fill; the rest goes to the driver and to fragmentation."""

MOST_DEVICES = 4096
"""Numbers of devices that are tried before none is advised."""


@dataclass(frozen=True)
class Situation:
    """A plan's memory on ``devices`` devices, and what it would be on another number of them.
    ``room``: how long contexts get, ``None`` on CPUs, whose memory is not known here."""

    config: Config
    memory: MemoryPerDevice
    devices: int
    elsewhere: Callable[[int], MemoryPerDevice]
    room: EngineRoom | None

    @property
    def card(self) -> float:
        """Bytes of the card that the plan is held against."""
        return self.config.trainer.card_gib * GIB

    @property
    def budget(self) -> float:
        """Bytes of it that a plan may fill."""
        return USABLE * self.card

    @property
    def engine_fits(self) -> bool:
        """Whether weights, a step and graphs leave room in the engine's share."""
        return self.memory.engine_cache > 0

    @property
    def fits(self) -> bool:
        if self.room is None:
            return True
        return self.engine_fits and self.room.fits and self.memory.total <= self.budget

    @property
    def advice(self) -> str:
        """Whether it fits, and if not the settings that help most, in that order."""
        memory, total = self.memory, gib(self.memory.total)
        if self.room is None:
            return f"Each process needs about {total} of main memory."
        card = f"a card of {self.config.trainer.card_gib:g} GiB"
        if self.fits:
            return (
                f"Fits {card}: {total}, {memory.total / self.card:.0%} of it; "
                f"{gib(memory.updating)} in an update, {gib(memory.sampling)} in a rollout, of "
                f"which {gib(memory.engine)} are the engine's. {self.room.lowered()}"
            ).rstrip()
        remedies = " ".join([*self._for_the_engine(self.room), *self._for_the_trainer()])
        return f"Does not fit {card}: {total} a device. {remedies}"

    def _for_the_engine(self, room: EngineRoom) -> Iterator[str]:
        memory, engine = self.memory, self.config.engine
        if not self.engine_fits:
            yield (
                f"Raise engine.tensor_parallel (now {engine.tensor_parallel}) to "
                f"{self._tensor_parallel()}: weights, a step and graphs of the engine take "
                f"{gib(memory.engine)} of each card, and engine.gpu_memory_utilization="
                f"{engine.gpu_memory_utilization:g} gives it {gib(self._share)}."
            )
        elif not room.fits:
            yield room.remedy(self.config)

    def _for_the_trainer(self) -> Iterator[str]:
        config, memory, budget = self.config, self.memory, self.budget
        if memory.total <= budget:
            return
        states = memory.states + memory.buckets
        sharded = config.trainer.strategy == "fsdp2"
        if not sharded and states > budget / 2:
            yield (
                f"Set trainer=fsdp2: weights, gradients and optimizer states take {gib(states)} on "
                "every device and would be split over all of them."
            )
        passing = memory.activations + memory.logits
        if memory.updating > budget and not memory.sleeps and config.rollout.overlap:
            yield (
                "Set rollout.overlap=false: the engine then sleeps, and an update has its "
                f"{gib(memory.engine)}."
            )
        elif memory.updating > budget and not memory.sleeps:
            yield f"Set engine.sleep=true: an update then has the engine's {gib(memory.engine)}."
        if not config.model.gradient_checkpointing and memory.activations > budget / 8:
            yield (
                "Set model.gradient_checkpointing=true: activations take "
                f"{gib(memory.activations)} without it."
            )
        elif memory.updating > budget and passing > budget / 4:
            yield (
                "Lower optimizer.micro_batch_tokens (now "
                f"{config.optimizer.micro_batch_tokens}): activations take "
                f"{gib(memory.activations)}."
            )
        needed = self._fewest_devices() if sharded else None
        if needed is not None:
            yield (
                f"Use at least {needed} devices (trainer.devices, trainer.num_nodes; now "
                f"{self.devices}): the sharded states take {gib(memory.states)} on each."
            )
        if self.engine_fits and memory.sampling > budget and memory.engine > budget / 4:
            yield (
                "Lower engine.gpu_memory_utilization (now "
                f"{config.engine.gpu_memory_utilization:g}): the engine reserves "
                f"{gib(memory.engine)}."
            )

    @property
    def _share(self) -> int:
        return int(self.config.engine.gpu_memory_utilization * self.card)

    def _fewest_devices(self) -> int | None:
        """The smallest number of devices on which both phases fit."""
        step = self.config.trainer.sharding.replicas
        for devices in range(self.devices + step, MOST_DEVICES + 1, step):
            if self.elsewhere(devices).total <= self.budget:
                return devices
        return None

    def _tensor_parallel(self) -> int:
        """The smallest power of two that leaves a third of the engine's share to keys and
        values."""
        whole = self.memory.engine_weights * self.config.engine.tensor_parallel
        parallel = 2 * self.config.engine.tensor_parallel
        while whole / parallel > self._share * 2 / 3:
            parallel *= 2
        return parallel


def gib(size: float) -> str:
    """Bytes as a reader's figure."""
    return f"{size / GIB:,.2f} GiB"
