"""The dry run: sizes, tokens and memory of a configuration, from arithmetic alone.

No weights are loaded, and torch is imported only where the sizes stand in the model's own
``config.json``. The numbers are estimates to plan with: what a
framework caches and fragments is not in them, which is why a plan fits only up to ``USABLE`` of a
card's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from mempo.agent.engine_room import EngineRoom, engine_room
from mempo.command.memory_estimate import (
    GIB,
    MemoryPerDevice,
    ParameterCount,
    estimate_memory,
)
from mempo.command.model_sizes import model_sizes
from mempo.command.supervised_plan import (
    SupervisedPlan,
    plan_supervised,
    supervised_fits,
    supervised_lines,
    supervised_remedy,
)
from mempo.command.time_plan import Card, Work, read_card, time_tables, work_of
from mempo.config import Config
from mempo.runtime.errors import ConfigError

USABLE = 0.92
"""Share of a card that a plan may fill; the rest goes to the driver and to fragmentation."""

ASSUMED_DEVICES = 8
"""GPUs per machine that a plan assumes for ``trainer.devices=auto`` where there is none."""


@dataclass(frozen=True)
class Plan:
    """What a configuration asks for. Token and row counts are upper bounds per epoch, over all
    devices; ``advice`` is one sentence that says whether it fits and what to change if not.
    ``supervised`` is ``None`` without a supervised start, which comes before RL and its engine;
    ``context`` are the tokens of the engine's longest context (``None`` on CPUs); ``card`` is
    ``None`` where hours are not asked for."""

    model: str
    parameters: ParameterCount
    strategy: str
    devices: int
    devices_assumed: bool
    trajectories: int
    response_tokens: int
    scored_rounds: int
    scoring_rows: int
    memory: MemoryPerDevice
    fits: bool
    advice: str
    supervised: SupervisedPlan | None = None
    work: Work | None = None
    card: Card | None = None
    context: int | None = None


def planned_world_size(config: Config, gpus: int) -> tuple[int, bool]:
    """How many processes the run would have, and whether that is an assumption.

    ``gpus`` is the number of GPUs in this machine. ``trainer.devices=auto`` means all of them;
    where there is none, a multi-device strategy is planned for ``ASSUMED_DEVICES`` GPUs and a
    single-device one for one.
    """
    trainer = config.trainer
    if trainer.devices != "auto":
        return trainer.devices * trainer.num_nodes, False
    if trainer.accelerator == "cpu":
        return trainer.num_nodes, False
    if gpus > 0:
        return gpus * trainer.num_nodes, False
    if trainer.strategy == "auto":
        return trainer.num_nodes, True
    return ASSUMED_DEVICES * trainer.num_nodes, True


def make_plan(config: Config, world_size: int, devices_assumed: bool = False) -> Plan:
    """Works out sizes, tokens and memory for ``world_size`` devices.

    Raises ``ConfigError`` when the model's sizes cannot be told (``model_sizes``).
    """
    if world_size < 1:
        raise ConfigError(f"trainer.devices: {world_size} devices cannot train; give at least 1")
    sizes = model_sizes(config)
    rollout = config.rollout
    trajectories = rollout.tasks_per_epoch * rollout.group_size
    scored_rounds = trajectories * (rollout.max_rounds - 1) if config.scoring.enabled else 0
    memory = estimate_memory(
        config, sizes.architecture, world_size, sizes.parameters, sizes.adapters
    )
    supervised = plan_supervised(config, sizes, world_size)
    starts = supervised_fits(supervised, config, USABLE)
    room = None
    if config.trainer.accelerator != "cpu":
        room = engine_room(config, sizes.architecture, memory.engine_cache)
    advice = _advice(config, memory, world_size, room)
    if supervised is not None and not starts:
        advice += " " + supervised_remedy(
            supervised, config.model.lora is not None, config.trainer.card_gib
        )
    return Plan(
        model=config.model.name,
        parameters=sizes.parameters,
        strategy=config.trainer.strategy,
        devices=world_size,
        devices_assumed=devices_assumed,
        trajectories=trajectories,
        response_tokens=trajectories * rollout.max_response_tokens,
        scored_rounds=scored_rounds,
        scoring_rows=_scoring_rows(config, trajectories, scored_rounds),
        memory=memory,
        fits=_fits(config, memory, room) and starts,
        advice=advice,
        supervised=supervised,
        work=work_of(config, sizes.architecture, sizes.parameters, sizes.adapters),
        card=None if config.trainer.card is None else read_card(config.trainer.card),
        context=None if room is None else room.context,
    )


def _scoring_rows(config: Config, trajectories: int, scored_rounds: int) -> int:
    """Two a round, or its memory's only and one a trajectory for the question alone."""
    if config.scoring.baseline == "history":
        return 2 * scored_rounds
    return scored_rounds + min(scored_rounds, trajectories)


def _fits(config: Config, memory: MemoryPerDevice, room: EngineRoom | None) -> bool:
    """True on CPUs, whose memory is not known here."""
    if room is None:
        return True
    return _engine_fits(config, memory) and room.fits and memory.total <= USABLE * _card(config)


def _card(config: Config) -> float:
    """Memory of the card that the plan is held against, in bytes."""
    return config.trainer.card_gib * GIB


def _engine_fits(config: Config, memory: MemoryPerDevice) -> bool:
    if config.engine.gpu_kv_cache_gib is not None:
        return True
    return memory.engine_weights < config.engine.gpu_memory_utilization * _card(config)


def _advice(
    config: Config, memory: MemoryPerDevice, world_size: int, room: EngineRoom | None
) -> str:
    """Whether it fits, and if not the settings that help most, in that order."""
    total = _gib(memory.total)
    if room is None:
        return f"Each process needs about {total} of main memory."
    card = config.trainer.card_gib
    if _fits(config, memory, room):
        return (
            f"Fits a card of {card:g} GiB: {total}, {memory.total / (card * GIB):.0%} of "
            f"it, of which {_gib(memory.engine)} are the engine's. {room.lowered()}"
        ).rstrip()
    remedies = " ".join(_remedies(config, memory, world_size, room))
    return f"Does not fit a card of {card:g} GiB: {total} a device. {remedies}"


def _remedies(
    config: Config, memory: MemoryPerDevice, world_size: int, contexts: EngineRoom
) -> Iterator[str]:
    budget = USABLE * _card(config)
    states = memory.states
    reserved = config.engine.gpu_memory_utilization * _card(config)
    if not _engine_fits(config, memory):
        yield (
            f"Raise engine.tensor_parallel (now {config.engine.tensor_parallel}) to "
            f"{_tensor_parallel(config, memory)}: the engine's weights take "
            f"{_gib(memory.engine_weights)} of each card, and engine.gpu_memory_utilization="
            f"{config.engine.gpu_memory_utilization:g} gives it {_gib(int(reserved))}."
        )
    elif not contexts.fits:
        yield contexts.remedy(config)
    if config.trainer.strategy != "fsdp2" and states > budget / 2:
        yield (
            f"Set trainer=fsdp2: weights, gradients and optimizer states take {_gib(states)} on "
            "every device and would be split over all of them."
        )
    if not config.model.gradient_checkpointing and memory.activations > budget / 8:
        yield (
            "Set model.gradient_checkpointing=true: activations take "
            f"{_gib(memory.activations)} without it."
        )
    elif memory.activations + memory.logits > budget / 4:
        yield (
            "Lower optimizer.micro_batch_tokens (now "
            f"{config.optimizer.micro_batch_tokens}): activations take {_gib(memory.activations)}."
        )
    room = budget - reserved - (memory.training - states)
    if config.trainer.strategy == "fsdp2" and room > 0 and states > room:
        yield (
            f"Use at least {-(-states * world_size // int(room))} devices (trainer.devices, "
            f"trainer.num_nodes; now {world_size}): the sharded states take {_gib(states)} on each."
        )
    if _engine_fits(config, memory) and memory.engine > budget / 4:
        yield (
            "Lower engine.gpu_memory_utilization (now "
            f"{config.engine.gpu_memory_utilization:g}): the engine reserves {_gib(memory.engine)}."
        )


def _tensor_parallel(config: Config, memory: MemoryPerDevice) -> int:
    """The smallest power of two that leaves a third of the engine's share to keys and values."""
    share = config.engine.gpu_memory_utilization * _card(config) * 2 / 3
    whole = memory.engine_weights * config.engine.tensor_parallel
    parallel = 2 * config.engine.tensor_parallel
    while whole / parallel > share:
        parallel *= 2
    return parallel


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Prints the plan as tables that end with the advice."""
    console = console or Console()
    assumed = ""
    if plan.devices_assumed:
        noun = "GPU" if plan.devices == 1 else "GPUs"
        assumed = f" (assuming {plan.devices} {noun}: trainer.devices=auto and none is here)"
    console.print(f"[bold]Dry run[/bold] of {plan.model}: nothing is loaded or trained.")
    console.print(f"strategy {plan.strategy}, {plan.devices} device(s){assumed}", highlight=False)
    _print_rows(console, "Parameters", _parameter_rows(plan.parameters))
    _print_rows(
        console,
        "Per epoch, at most",
        [
            ("trajectories", f"{plan.trajectories:,}"),
            ("response tokens", f"{plan.response_tokens:,}"),
            ("scored rounds", f"{plan.scored_rounds:,}"),
            ("rows scored", f"{plan.scoring_rows:,}"),
            *([] if plan.context is None else [("tokens of a context", f"{plan.context:,}")]),
        ],
    )
    _print_rows(console, "Memory per device", _memory_rows(plan.memory))
    if plan.work is not None and plan.card is not None:
        for title, rows in time_tables(plan.work, plan.card, plan.devices):
            _print_rows(console, title, rows)
    console.print(supervised_lines(plan.supervised), highlight=False)
    console.print(plan.advice, style="green" if plan.fits else "bold red", highlight=False)


def _parameter_rows(parameters: ParameterCount) -> list[tuple[str, str]]:
    return [
        ("embedding", f"{parameters.embedding:,}"),
        (f"{parameters.layers} layers", f"{parameters.layer * parameters.layers:,}"),
        ("final norm", f"{parameters.final_norm:,}"),
        ("output head", f"{parameters.head:,}" if parameters.head else "tied to the embedding"),
        ("total", f"{parameters.total:,}"),
    ]


def _memory_rows(memory: MemoryPerDevice) -> list[tuple[str, str]]:
    rows = [
        ("weights", memory.weights),
        ("gradients, float32", memory.gradients),
        ("weights in bfloat16", memory.lower_copies),
        ("AdamW moments, float32", memory.optimizer_states),
        ("frozen reference (KL)", memory.reference),
        ("gathered layers", memory.gathered),
        ("activations", memory.activations),
        ("logits", memory.logits),
        ("engine: weights", memory.engine_weights),
        ("engine: keys and values", memory.engine_cache),
        ("total", memory.total),
    ]
    return [(name, _gib(size)) for name, size in rows if size or name == "total"]


def _print_rows(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        before_total = rows[-1][0] == "total" and row is rows[-2]
        table.add_row(*row, end_section=before_total)
    console.print(table)


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"
