"""Whether the engine's contexts fit its memory on a GPU, as vLLM will look at it when it starts.

Of what the engine reserves beside its weights, a step of ``engine.gpu_step_tokens``, logits and
graphs of kernels take a part; keys and values have the rest. vLLM refuses to start where those of
one context do not fit, or lowers the context where it was given none (``start_arguments.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mempo.agent.context_room import needed_context
from mempo.config import ArchitectureConfig, Config

GIB: Final = 1024**3
GRAPHS: Final = int(1.25 * GIB)
"""What vLLM's graphs of kernels and its buffers take, as others report it (1 to 1.5 GiB)."""

_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class EngineRoom:
    """``wanted`` is the longest context that limits and model allow, ``holds`` how many tokens'
    keys and values the engine holds; both in tokens. ``fixed``: the engine is started with exactly
    ``wanted``, else with what fits. ``token`` is what one takes, ``keys_and_values`` what there is,
    in bytes on one device."""

    wanted: int
    holds: int
    fixed: bool
    token: int
    keys_and_values: int

    @property
    def fits(self) -> bool:
        return self.holds >= (self.wanted if self.fixed else 1)

    @property
    def context(self) -> int:
        """Tokens of the longest context that a started engine takes."""
        return min(self.wanted, self.holds)

    def remedy(self, config: Config) -> str:
        """What to change where it does not fit."""
        memory = "gpu_kv_cache_gib" if config.engine.gpu_kv_cache_gib else "gpu_memory_utilization"
        if config.engine.max_model_len is None:
            limits = "rollout.max_response_tokens and evaluation.max_response_tokens"
        else:
            limits = "engine.max_model_len"
        return (
            f"Raise engine.{memory}, or lower {limits}: keys and values of one context of "
            f"{self.wanted:,} tokens take {self.wanted * self.token / GIB:,.2f} GiB of each card, "
            f"and the engine has {self.keys_and_values / GIB:,.2f} GiB for them."
        )

    def lowered(self) -> str:
        """A sentence where contexts are shorter than they might be; else nothing."""
        if self.context == self.wanted:
            return ""
        return (
            f"Contexts end at {self.context:,} tokens, for which the engine has keys and values; "
            f"limits and model would allow {self.wanted:,}."
        )


def engine_room(
    config: Config, architecture: ArchitectureConfig, beside_weights: int
) -> EngineRoom:
    """That of one device: a part of it where an engine has several (``engine.tensor_parallel``).
    ``beside_weights``: bytes that the engine reserves there beside its weights."""
    engine, own = config.engine, architecture.max_position_embeddings
    needed = needed_context(config, None)
    wanted = engine.max_model_len or min(needed, own)
    size = _BYTES[config.engine_dtype]
    heads = -(-architecture.num_key_value_heads // engine.tensor_parallel)
    width = architecture.hidden_size // architecture.num_attention_heads
    token = 2 * architecture.num_hidden_layers * heads * width * size
    if engine.gpu_kv_cache_gib is None:
        room = max(0, beside_weights - step_memory(config, architecture))
    else:
        room = int(engine.gpu_kv_cache_gib * GIB)
    fixed = engine.max_model_len is not None or needed < own
    return EngineRoom(wanted, room // token, fixed, token, room)


def step_memory(config: Config, architecture: ArchitectureConfig) -> int:
    """Bytes that one step of the engine takes for a moment, with the graphs: per token of the step
    both products of the feed-forward and four hidden-wide vectors, and for each sequence logits in
    float32, twice."""
    engine, size = config.engine, _BYTES[config.engine_dtype]
    widest = 2 * architecture.intermediate_size // engine.tensor_parallel
    activations = engine.gpu_step_tokens * (widest + 4 * architecture.hidden_size) * size
    logits = 2 * 4 * engine.max_num_seqs * architecture.vocab_size
    return activations + logits + GRAPHS
