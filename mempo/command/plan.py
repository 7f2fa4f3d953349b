"""The dry run: sizes, tokens and memory of a configuration, from arithmetic alone.

No weights are loaded, and torch is imported only where the sizes stand in the model's own
``config.json``. The numbers are estimates to plan with: what a
framework caches and fragments is not in them, which is why a plan fits only up to ``USABLE`` of a
card's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from mempo.agent.engine_room import engine_room
from mempo.command.memory_estimate import (
    MemoryPerDevice,
    ParameterCount,
    estimate_memory,
)
from mempo.command.model_sizes import model_sizes
from mempo.command.planning.advice import USABLE, Situation, gib
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

    def memory_on(devices: int) -> MemoryPerDevice:
        return estimate_memory(
            config, sizes.architecture, devices, sizes.parameters, sizes.adapters
        )

    memory = memory_on(world_size)
    supervised = plan_supervised(config, sizes, world_size)
    starts = supervised_fits(supervised, config, USABLE)
    room = None
    if config.trainer.accelerator != "cpu":
        beside_weights = memory.engine - memory.engine_weights
        room = engine_room(config, sizes.architecture, beside_weights)
    situation = Situation(config, memory, world_size, memory_on, room)
    advice = situation.advice
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
        fits=situation.fits and starts,
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
        ("DDP's buckets", memory.buckets),
        ("weights in bfloat16", memory.lower_copies),
        ("AdamW moments, float32", memory.optimizer_states),
        ("frozen reference (KL)", memory.reference),
        ("gathered weights", memory.gathered),
        ("activations", memory.activations),
        ("logits", memory.logits),
        ("gradients on their way", memory.moving),
        ("copies of AdamW's step", memory.step_copies),
        ("CUDA, libraries", memory.context),
        ("engine: weights", memory.engine_weights),
        ("engine: one step", memory.engine_steps),
        ("engine: graphs", memory.engine_graphs),
        ("engine: keys and values", memory.engine_cache),
        ("in an update", memory.updating),
        ("in a rollout", memory.sampling),
        ("at most", memory.total),
    ]
    phases = ("in an update", "in a rollout", "at most")
    return [(name, gib(size)) for name, size in rows if size or name in phases]


def _print_rows(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row, following in zip(rows, [*rows[1:], ("", "")], strict=True):
        table.add_row(*row, end_section=following[0] in ("total", "in an update"))
    console.print(table)
