"""Parameters and memory of a configuration, from arithmetic alone (no torch).

Layers are Llama- or Qwen2-like where a model's own were not counted (``model_sizes.py``). What is
trained is held in float32, with its gradients and the two moments of AdamW; what is frozen in
``model.dtype``. Passes in bfloat16 keep a copy of the trained weights in it, and ``fsdp2`` one of
the layer at hand. The engine holds a second copy of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from mempo.config import ArchitectureConfig, Config

GIB = 1024**3

LOGIT_CHUNK_ELEMENTS = 2**26
"""Logits that stand in memory at a time (``mempo.learning.pass_sizes.GPU_LOGITS``), three times
in float32: themselves, their exponentials and their gradient."""

_BYTES = {"float32": 4, "bfloat16": 2}


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
    """What one device holds at the fullest moment of an update, in bytes.

    ``lower_copies`` are the trained weights in bfloat16, ``gathered`` the whole layers that sharded
    training assembles for a moment; ``engine`` is all that the engine reserves: ``engine_weights``
    and, with the rest, keys and values.
    """

    weights: int
    gradients: int
    lower_copies: int
    optimizer_states: int
    reference: int
    gathered: int
    activations: int
    logits: int
    engine_weights: int
    engine_cache: int

    @property
    def states(self) -> int:
        """What ``fsdp2`` splits over the devices."""
        return self.weights + self.reference + self.gradients + self.optimizer_states

    @property
    def training(self) -> int:
        passing = self.lower_copies + self.gathered + self.activations + self.logits
        return self.states + passing

    @property
    def engine(self) -> int:
        return self.engine_weights + self.engine_cache

    @property
    def total(self) -> int:
        return self.training + self.engine


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
    size = _BYTES[config.model.dtype]
    sharding = config.trainer.sharding
    shards = world_size // sharding.replicas if config.trainer.strategy == "fsdp2" else 1
    held = -(-parameters.total // shards)
    lora = config.model.lora
    trained = held
    if lora is not None:
        adapters = adapters or adapter_parameters(architecture, lora.rank)
        trained = -(-adapters // shards)
    largest = max(parameters.layer, parameters.embedding)
    engine_weights, engine_cache = _engine_memory(config, parameters)
    return MemoryPerDevice(
        weights=trained * 4 + (0 if lora is None else held * size),
        gradients=trained * 4 * (shards if sharding.reduce_once else 1),
        lower_copies=trained * size if size < 4 and shards == 1 else 0,
        optimizer_states=trained * 8,
        reference=held * size if config.loss.kl_coefficient > 0 and lora is None else 0,
        gathered=2 * largest * size if shards > 1 else 0,
        activations=_activations(config, architecture),
        logits=3
        * 4
        * min(architecture.vocab_size * config.optimizer.micro_batch_tokens, LOGIT_CHUNK_ELEMENTS),
        engine_weights=engine_weights,
        engine_cache=engine_cache,
    )


def _engine_memory(config: Config, parameters: ParameterCount) -> tuple[int, int]:
    """Bytes of the engine's weights on one device, and of its keys and values.

    On GPUs the engine reserves its share of the card at once; on CPUs, and with
    ``engine.gpu_kv_cache_gib``, keys and values have a size of their own.
    """
    dtype = config.model.dtype if config.engine.dtype == "auto" else config.engine.dtype
    weights = -(-parameters.total * _BYTES[dtype] // config.engine.tensor_parallel)
    if config.trainer.accelerator == "cpu":
        return weights, int(config.engine.cpu_kv_cache_gib * GIB)
    if config.engine.gpu_kv_cache_gib is not None:
        return weights, int(config.engine.gpu_kv_cache_gib * GIB)
    reserved = int(config.engine.gpu_memory_utilization * config.trainer.card_gib * GIB)
    return weights, max(reserved - weights, 0)


def _activations(config: Config, architecture: ArchitectureConfig) -> int:
    """Bytes that the forward pass of one micro-batch keeps for the backward pass.

    Per token a layer keeps about 8 hidden-wide vectors (inputs of both norms and of the
    projections, queries, attention's output), keys and values, and 4 intermediate-wide ones.
    Attention keeps no matrix of scores (fused kernels). With gradient checkpointing a layer keeps
    its input alone, or if it is selective also the results of its seven matrix products and of
    attention, and one layer at a time is whole.
    """
    hidden = architecture.hidden_size
    key_value = architecture.num_key_value_heads * (hidden // architecture.num_attention_heads)
    layer = 8 * hidden + 2 * key_value + 4 * architecture.intermediate_size
    layers = architecture.num_hidden_layers
    checkpointing = config.model.gradient_checkpointing
    if checkpointing == "selective":
        products = 4 * hidden + 2 * key_value + 2 * architecture.intermediate_size
        kept = layers * (hidden + products) + layer
    elif checkpointing:
        kept = layers * hidden + layer
    else:
        kept = layers * layer
    return kept * config.optimizer.micro_batch_tokens * _BYTES[config.model.dtype]
