"""Parameters and memory of a configuration, from arithmetic alone (no torch).

Layers are Llama- or Qwen2-like where a model's own were not counted (``model_sizes.py``). What is
trained is held in float32, with its gradients and the two moments of AdamW; what is frozen in
``model.dtype``. ``planning/passes.py`` has what a pass holds beside that. The engine has
a second copy of the model. ``docs/planning.md`` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

from mempo.agent.engine_room import GRAPHS, step_memory
from mempo.command.planning.passes import BYTES, Pass, pass_of
from mempo.config import ArchitectureConfig, Config

GIB = 1024**3

CUDA_BYTES = 6 * GIB // 10
"""Assumed: a process's CUDA context with the kernels of torch, and workspaces of cuBLAS."""

NCCL_BYTES = GIB // 2
"""Assumed: buffers of NCCL where there are several devices."""


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters. ``head`` is 0 where it is tied to ``embedding``."""

    embedding: int
    layer: int
    layers: int
    final_norm: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.layer * self.layers + self.final_norm + self.head


@dataclass(frozen=True)
class MemoryPerDevice:
    """What one device holds in a run, in bytes.

    Between micro-batches: weights, their ``gradients`` with DDP's ``buckets``, AdamW's moments, the
    KL term's reference. For a pass at its fullest moment: ``lower_copies``, the trained weights in
    bfloat16 (autocast); ``gathered``, whole weights of sharded training; activations; logits;
    ``moving``, gradients not yet where they stay. For a step: ``step_copies``. The engine's:
    weights, activations of one step, graphs, keys and values. ``context``: CUDA and its libraries.
    ``sleeps``: the engine gives back all but its graphs while the trainer works.
    """

    weights: int
    gradients: int
    buckets: int
    optimizer_states: int
    reference: int
    lower_copies: int
    gathered: int
    activations: int
    logits: int
    moving: int
    step_copies: int
    engine_weights: int
    engine_steps: int
    engine_graphs: int
    engine_cache: int
    context: int
    sleeps: bool

    @property
    def states(self) -> int:
        """What ``fsdp2`` splits over the devices."""
        return self.weights + self.reference + self.gradients + self.optimizer_states

    @property
    def training(self) -> int:
        """The trainer's tensors at the fullest moment of an update: in a pass, or in AdamW's
        step."""
        passing = self.lower_copies + self.gathered + self.activations + self.logits + self.moving
        return self.states + self.buckets + max(passing, self.step_copies)

    @property
    def engine(self) -> int:
        """All that the engine takes while it samples."""
        return self.engine_weights + self.engine_steps + self.engine_graphs + self.engine_cache

    @property
    def updating(self) -> int:
        """All of a device in an update."""
        stays = self.engine_graphs if self.sleeps else self.engine
        return self.context + self.training + stays

    @property
    def sampling(self) -> int:
        """All of a device in a rollout, when there are no gradients."""
        rests = self.weights + self.reference + self.optimizer_states + self.buckets
        return self.context + rests + self.engine

    @property
    def total(self) -> int:
        """The larger of the two phases."""
        return max(self.updating, self.sampling)


def count_parameters(architecture: ArchitectureConfig) -> ParameterCount:
    """Counts the parameters of a Llama- or Qwen2-like model.

    Grouped-query attention, RMS norms, a gated feed-forward of three matrices, no biases but those
    on the query, key and value projections (``attention_bias``).
    """
    hidden = architecture.hidden_size
    key_value = architecture.num_key_value_heads * (hidden // architecture.num_attention_heads)
    attention = 2 * hidden * hidden + 2 * hidden * key_value
    if architecture.attention_bias:
        attention += hidden + 2 * key_value
    feed_forward = 3 * hidden * architecture.intermediate_size
    embedding = architecture.vocab_size * hidden
    return ParameterCount(
        embedding=embedding,
        layer=attention + feed_forward + 2 * hidden,
        layers=architecture.num_hidden_layers,
        final_norm=hidden,
        head=0 if architecture.tie_word_embeddings else embedding,
    )


def adapter_parameters(architecture: ArchitectureConfig, rank: int) -> int:
    """Parameters of LoRA adapters on all seven linear layers of each block: rank · (in + out)."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    key_value = architecture.num_key_value_heads * (hidden // architecture.num_attention_heads)
    widths = 2 * (hidden + hidden) + 2 * (hidden + key_value) + 3 * (hidden + inner)
    return architecture.num_hidden_layers * rank * widths


def estimate_memory(
    config: Config,
    architecture: ArchitectureConfig,
    world_size: int,
    parameters: ParameterCount | None = None,
    adapters: int | None = None,
) -> MemoryPerDevice:
    """Memory of one device. ``fsdp2`` divides weights, gradients and optimizer states by the
    number of devices; every other strategy keeps them whole on each.

    ``parameters`` and ``adapters`` are the model's own numbers where they were counted; else they
    are worked out for a Llama- or Qwen2-like model.
    """
    parameters = parameters or count_parameters(architecture)
    size = BYTES[config.model.dtype]
    sharding, lora = config.trainer.sharding, config.model.lora
    shards = world_size // sharding.replicas if config.trainer.strategy == "fsdp2" else 1
    held = -(-parameters.total // shards)
    trained = held
    if lora is not None:
        trained = -(-(adapters or adapter_parameters(architecture, lora.rank)) // shards)
    one = pass_of(config, architecture, parameters.layer)
    moment = one.fullest()
    engine = _engine_memory(config, architecture, parameters)
    on_cpu = config.trainer.accelerator == "cpu"
    return MemoryPerDevice(
        weights=trained * 4 + (0 if lora is None else held * size),
        gradients=trained * 4 * (shards if sharding.reduce_once else 1),
        buckets=trained * 4 if config.trainer.strategy == "ddp" and world_size > 1 else 0,
        optimizer_states=trained * 8,
        reference=held * size if config.loss.kl_coefficient > 0 and lora is None else 0,
        lower_copies=_lower_copies(one, parameters, trained),
        gathered=moment.gathered,
        activations=moment.activations,
        logits=moment.logits,
        moving=moment.moving,
        step_copies=0 if on_cpu or config.optimizer.fused is not False else trained * 4,
        engine_weights=engine.weights,
        engine_steps=engine.steps,
        engine_graphs=engine.graphs,
        engine_cache=engine.cache,
        context=0 if on_cpu else CUDA_BYTES + (NCCL_BYTES if world_size > 1 else 0),
        sleeps=config.engine.sleep and not config.rollout.overlap and not on_cpu,
    )


def _lower_copies(one: Pass, parameters: ParameterCount, trained: int) -> int:
    """Autocast casts matrices: not an embedding that is looked up alone."""
    if not one.autocast:
        return 0
    looked_up = parameters.embedding if parameters.head and not one.rank else 0
    return (trained - looked_up) * one.element


@dataclass(frozen=True)
class _EngineMemory:
    weights: int
    steps: int
    graphs: int
    cache: int


def _engine_memory(
    config: Config, architecture: ArchitectureConfig, parameters: ParameterCount
) -> _EngineMemory:
    """On GPUs the engine reserves its share of the card at once, or what
    ``engine.gpu_kv_cache_gib`` says beside the rest; on CPUs keys and values have a size of their
    own."""
    engine = config.engine
    weights = -(-parameters.total * BYTES[config.engine_dtype] // engine.tensor_parallel)
    if config.trainer.accelerator == "cpu":
        return _EngineMemory(weights, 0, 0, int(engine.cpu_kv_cache_gib * GIB))
    steps = step_memory(config, architecture) - GRAPHS
    if engine.gpu_kv_cache_gib is not None:
        cache = int(engine.gpu_kv_cache_gib * GIB)
    else:
        reserved = int(engine.gpu_memory_utilization * config.trainer.card_gib * GIB)
        cache = max(reserved - weights - steps - GRAPHS, 0)
    return _EngineMemory(weights, steps, GRAPHS, cache)
