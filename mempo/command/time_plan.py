"""Hours of an epoch from arithmetic: operations and bytes over a card's peak and bandwidth.

An estimate to choose between settings with (docs/planning.md has the formulas). Attention's own
operations, tools, the agent loop and whatever waits are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from omegaconf import OmegaConf

from mempo.command.cli import CONF_DIR
from mempo.command.memory_estimate import ParameterCount
from mempo.config import ArchitectureConfig, Config
from mempo.runtime.errors import ConfigError

CARDS_FILE: Final = CONF_DIR / "cards.yaml"
GPUS_OF_A_MACHINE: Final = 8
SCALES: Final = (8, 16, 64, 256, 1024)

COMPUTE_SHARE: Final = 0.35  # of the peak that update, scoring and prefill reach
BANDWIDTH_SHARE: Final = 0.6  # of the memory's bandwidth that decoding reaches
NETWORK_SHARE: Final = 0.7  # of the links' bandwidth that exchanges reach
WRITTEN_SHARE: Final = 0.5  # of a response that the policy writes; the rest are observations
PROMPT_TOKENS: Final = 600
_BYTES: Final = 2  # bfloat16


@dataclass(frozen=True)
class Card:
    """Of one GPU: dense bfloat16 TFLOP/s, and GB/s of its memory and of its links, inside the
    machine and to others."""

    tflops: float
    memory_gbs: float
    inside_gbs: float
    between_gbs: float


@dataclass(frozen=True)
class Work:
    """What an epoch asks for: parameters, those that get gradients, trajectories, tokens of one
    response, passes of a micro-batch, and how the model is split."""

    parameters: int
    trained: int
    trajectories: int
    response_tokens: int
    kv_bytes: int
    at_once: int
    tensor_parallel: int
    sharded: bool
    recomputed: bool
    scored: bool
    micro_batch_tokens: int
    updates: int


@dataclass(frozen=True)
class PhaseTime:
    """Seconds of a phase, what bounds it, and of it the seconds that exchanges last."""

    name: str
    seconds: float
    bound_by: str
    network: float = 0.0


def read_card(name: str) -> Card:
    """The card of ``trainer.card``. Raises ``ConfigError`` for one that ``conf/cards.yaml`` does
    not have."""
    cards: Any = OmegaConf.load(CARDS_FILE)
    if name not in cards:
        known = ", ".join(sorted(map(str, cards)))
        raise ConfigError(f"trainer.card={name}: choose of {known}, or add it to conf/cards.yaml")
    return Card(**{str(key): float(value) for key, value in cards[name].items()})


def work_of(
    config: Config,
    architecture: ArchitectureConfig,
    parameters: ParameterCount,
    adapters: int | None,
) -> Work:
    """What a configuration asks of an epoch."""
    head = architecture.hidden_size // architecture.num_attention_heads
    layers, heads = architecture.num_hidden_layers, architecture.num_key_value_heads
    return Work(
        parameters=parameters.total,
        trained=adapters if config.model.lora is not None and adapters else parameters.total,
        trajectories=config.rollout.tasks_per_epoch * config.rollout.group_size,
        response_tokens=config.rollout.max_response_tokens,
        kv_bytes=2 * layers * heads * head * _BYTES,
        at_once=config.engine.max_num_seqs,
        tensor_parallel=config.engine.tensor_parallel,
        sharded=config.trainer.strategy == "fsdp2",
        recomputed=bool(config.model.gradient_checkpointing),
        scored=config.scoring.enabled,
        micro_batch_tokens=config.optimizer.micro_batch_tokens,
        updates=config.optimizer.updates_per_epoch,
    )


def epoch_time(work: Work, card: Card, gpus: int) -> list[PhaseTime]:
    """The phases of an epoch on so many GPUs, in their order."""
    link = card.inside_gbs if gpus <= GPUS_OF_A_MACHINE else card.between_gbs
    rate = COMPUTE_SHARE * card.tflops * 1e12
    wire = NETWORK_SHARE * link * 1e9
    rows = max(work.trajectories / gpus, 1.0)
    tokens = rows * (PROMPT_TOKENS + work.response_tokens)
    phases = [_rollout(work, card, gpus, rate)]
    passing = work.parameters * _BYTES * (gpus - 1) / gpus / wire if work.sharded else 0.0
    passes = max(tokens / work.micro_batch_tokens, 1.0)
    if work.scored:
        phases.append(_computed("scoring", 2 * work.parameters * tokens / rate, passes * passing))
    phases.append(_update(work, tokens, rate, passes * passing, gpus, wire))
    gathered = work.parameters * _BYTES / wire if work.sharded else 0.0
    copied = work.parameters * _BYTES / (BANDWIDTH_SHARE * card.memory_gbs * 1e9)
    bound = "network" if gathered > copied else "memory"
    phases.append(PhaseTime("sync", gathered + copied, bound, gathered))
    return phases


def _rollout(work: Work, card: Card, gpus: int, rate: float) -> PhaseTime:
    """Every engine reads its weights, and keys and values of all that it writes, once a token."""
    engines = max(gpus / work.tensor_parallel, 1.0)
    own = max(work.trajectories / engines, 1.0)
    at_once = min(own, work.at_once)
    written = WRITTEN_SHARE * work.response_tokens
    seen = PROMPT_TOKENS + work.response_tokens / 2
    step = (work.parameters * _BYTES + at_once * seen * work.kv_bytes) / work.tensor_parallel
    decoding = written * max(own / at_once, 1.0) * step / (BANDWIDTH_SHARE * card.memory_gbs * 1e9)
    read = own * (PROMPT_TOKENS + (1 - WRITTEN_SHARE) * work.response_tokens)
    prefill = 2 * work.parameters * read / (rate * work.tensor_parallel)
    return PhaseTime("rollout", decoding + prefill, "memory" if decoding > prefill else "compute")


def _update(
    work: Work, tokens: float, rate: float, gathering: float, gpus: int, wire: float
) -> PhaseTime:
    """Forward, twice as much backward (of frozen weights once), and a second forward where
    activations are recomputed."""
    backward = 4 if work.trained == work.parameters else 2
    operations = (2 + backward + 2 * work.recomputed) * work.parameters * tokens
    reduced = work.updates * work.trained * 4 * 2 * (gpus - 1) / gpus / wire
    return _computed("update", operations / rate, (2 + work.recomputed) * gathering + reduced)


def _computed(name: str, computing: float, network: float) -> PhaseTime:
    """Exchanges run beside the computation: the longer of both counts."""
    bound = "network" if network > computing else "compute"
    return PhaseTime(name, max(computing, network), bound, network)


def scaling(work: Work, card: Card) -> list[tuple[int, float, float]]:
    """For each of ``SCALES``: GPUs, hours of an epoch, and the share of it that exchanges bound."""
    found = []
    for gpus in SCALES:
        phases = epoch_time(work, card, gpus)
        total = sum(one.seconds for one in phases)
        bound = sum(one.seconds for one in phases if one.bound_by == "network")
        found.append((gpus, total / 3600, bound / total))
    return found


def time_tables(work: Work, card: Card, gpus: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """What is printed: the phases of an epoch, then the same work on more GPUs."""
    phases = epoch_time(work, card, gpus)
    rows = [(one.name, f"{one.seconds:,.0f} s, {one.bound_by}") for one in phases]
    rows.append(("total", f"{sum(one.seconds for one in phases) / 3600:.2f} h"))
    tables = [("An epoch, estimated", rows)]
    if work.sharded:
        more = [
            (f"{count} GPUs", f"{hours:.2f} h, {share:.0%} bound by the network")
            for count, hours, share in scaling(work, card)
        ]
        tables.append(("The same on", more))
    return tables
