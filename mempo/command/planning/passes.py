"""What one micro-batch's forward and backward pass holds beside the states (no torch).

Per token and layer, counted in the models' own formulas: what autograd keeps of two norms (which
compute in float32), seven matrix products, attention by a fused kernel (no matrix of scores) and
the gated feed-forward. ``docs/planning.md`` has the formulas; a test holds them against torch's
trackers.
"""

from __future__ import annotations

from dataclasses import dataclass

from mempo.config import ArchitectureConfig, Config

LOGIT_CHUNK_ELEMENTS = 2**26
"""Logits that stand in memory at a time (``mempo.learning.pass_sizes.GPU_LOGITS``)."""

CPU_LOGIT_CHUNK_ELEMENTS = 2**25
"""The same on CPUs (``CPU_LOGITS``)."""

LOGIT_BYTES = 20
"""Of each logit of a chunk at most: itself, its share of the normalizer and of the chosen word, and
their gradients, in float32."""

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class PassMemory:
    """Bytes at one moment of a pass. ``gathered``: whole weights of sharded training. ``moving``:
    gradients that are not yet where they stay."""

    gathered: int
    activations: int
    logits: int
    moving: int

    @property
    def total(self) -> int:
        return self.gathered + self.activations + self.logits + self.moving


@dataclass(frozen=True)
class Pass:
    """One micro-batch of a configuration. ``layer`` and ``embedding`` count parameters, ``element``
    is the bytes of a number in its precision, ``rank`` that of adapters (0: all weights are
    trained), ``most_logits`` the size of a chunk."""

    sizes: ArchitectureConfig
    layer: int
    embedding: int
    tokens: int
    element: int
    strategy: str
    checkpointing: bool | str
    rank: int
    most_logits: int

    @property
    def sharded(self) -> bool:
        return self.strategy == "fsdp2"

    @property
    def autocast(self) -> bool:
        """Whether weights stay in float32 while passes run in bfloat16."""
        return self.element == 2 and not self.sharded

    @property
    def key_value(self) -> int:
        sizes = self.sizes
        return sizes.num_key_value_heads * (sizes.hidden_size // sizes.num_attention_heads)

    @property
    def stream(self) -> int:
        """Bytes of a number that is handed from layer to layer."""
        return 4 if self.autocast and not self.rank else self.element

    def fullest(self) -> PassMemory:
        """The fullest of four moments: the first chunk of logits goes backward, the output layer's
        gradient is handed on, the last layer goes backward, the embedding does."""
        moments = (
            self.at_logits(),
            self.at_output_layer(),
            self.at_last_layer(),
            self.at_embedding(),
        )
        return max(moments, key=lambda moment: moment.total)

    def at_logits(self) -> PassMemory:
        """All that is kept, beside a chunk of logits and gradients of the output layer."""
        head = self.embedding * self.element
        words = self.sizes.vocab_size * self.tokens
        chunk = min(words, self.most_logits)
        gradients = 0 if self.rank else head * (2 if words > chunk else 1)
        kept = self.kept if self.checkpointing else self.sizes.num_hidden_layers * self.whole_layer
        return PassMemory(
            gathered=head + self.layer * self.element if self.sharded else 0,
            activations=(kept + self._behind_layers) * self.tokens,
            logits=LOGIT_BYTES * chunk - (gradients // 2 if words > chunk else 0),
            moving=gradients,
        )

    def at_output_layer(self) -> PassMemory:
        """All that is kept, and the output layer's gradient beside its copy in float32: under
        autocast as it leaves bfloat16, sharded as it is reduced."""
        kept = self.kept if self.checkpointing else self.sizes.num_hidden_layers * self.whole_layer
        stays = self.sharded and self.sizes.tie_word_embeddings
        moving = 0 if self.rank else self.embedding * self.element
        if moving and not stays and (self.sharded or self.autocast):
            moving += 4 * self.embedding
        return PassMemory(
            gathered=(self.embedding + self.layer) * self.element if self.sharded else 0,
            activations=(kept + 2 * self.element * self.sizes.hidden_size) * self.tokens,
            logits=0,
            moving=moving,
        )

    def at_last_layer(self) -> PassMemory:
        """All that is kept, the last layer whole, gradients inside its feed-forward, and of the
        output layer what is still being reduced."""
        sizes, layers = self.sizes, self.sizes.num_hidden_layers
        kept = self.kept + self.whole_layer if self.checkpointing else layers * self.whole_layer
        inside = 2 * self.element * sizes.intermediate_size + 2 * self.stream * sizes.hidden_size
        if self.autocast and self.rank:  # adapters take their input in float32
            inside += 4 * sizes.intermediate_size
        moving = 0 if self.rank else self.element * sizes.intermediate_size * sizes.hidden_size
        gathered = 0
        tied = sizes.tie_word_embeddings
        if self.sharded:
            gathered = (2 * self.layer + (self.embedding if tied else 0)) * self.element
            if not self.rank:
                moving += 4 * (self.layer if tied else max(self.layer, self.embedding))
        if tied and not self.rank:
            moving += self.embedding * (self.element if self.sharded else 4)
        return PassMemory(gathered, (kept + inside) * self.tokens, 0, moving)

    def at_embedding(self) -> PassMemory:
        """Nothing is kept any more but the first layer's gradient."""
        gathered = self.embedding * self.element if self.sharded else 0
        moving = 0
        if not self.rank:
            own = self.element if self.sharded else 4
            moving = self.embedding * (own * (2 if self.sizes.tie_word_embeddings else 1))
            moving += 4 * self.embedding if self.sharded else 0
        return PassMemory(gathered, self.stream * self.sizes.hidden_size * self.tokens, 0, moving)

    @property
    def whole_layer(self) -> int:
        """Bytes that a layer keeps of one token."""
        sizes = self.sizes
        norms, vectors = self._norm_bytes, self._vectors
        wide = vectors * sizes.hidden_size + 2 * self.key_value + 4 * sizes.intermediate_size
        adapters = 7 * self.rank
        sums = 4 * sizes.num_attention_heads
        return norms * sizes.hidden_size + self.element * (wide + adapters) + sums

    @property
    def kept(self) -> int:
        """Bytes that all layers keep of one token under gradient checkpointing: their inputs, or if
        it is selective also the results of matrix products and of attention."""
        sizes = self.sizes
        own = self.stream * sizes.hidden_size
        if self.checkpointing == "selective":
            hidden, twice = sizes.hidden_size, 2 if self.rank else 1
            products = twice * (3 * hidden + 2 * self.key_value + 2 * sizes.intermediate_size)
            own += self.element * (products + hidden) + 4 * sizes.num_attention_heads
        return sizes.num_hidden_layers * own

    @property
    def _norm_bytes(self) -> int:
        """Of a hidden number in both norms, in float32: their input, and what it is scaled to where
        their weights are trained and that is not kept in bfloat16."""
        return 16 if not self.rank and (self.autocast or self.element == 4) else 8

    @property
    def _vectors(self) -> int:
        """Vectors of the hidden size in the passes' precision. Queries, and attention's output,
        which the next product shares; both norms' outputs; under autocast a copy of its input for
        each product (adapters, which take theirs in float32 first, one more)."""
        if self.autocast:
            return 8 if self.rank else 7
        return 4 if self.rank or self.element == 4 else 6

    @property
    def _behind_layers(self) -> int:
        """Bytes of one token behind the last layer: the final norm, the states that are asked for,
        and their gradients."""
        return (self._norm_bytes // 2 + 4 * self.element) * self.sizes.hidden_size


def pass_of(config: Config, sizes: ArchitectureConfig, layer: int) -> Pass:
    """The micro-batch of ``config``; ``layer`` is the number of a layer's parameters."""
    lora = config.model.lora
    on_cpu = config.trainer.accelerator == "cpu"
    return Pass(
        sizes=sizes,
        layer=layer,
        embedding=sizes.vocab_size * sizes.hidden_size,
        tokens=config.optimizer.micro_batch_tokens,
        element=BYTES[config.model.dtype],
        strategy=config.trainer.strategy,
        checkpointing=config.model.gradient_checkpointing,
        rank=0 if lora is None else lora.rank,
        most_logits=CPU_LOGIT_CHUNK_ELEMENTS if on_cpu else LOGIT_CHUNK_ELEMENTS,
    )
