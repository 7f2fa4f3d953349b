"""The tiny policy: a Qwen2-architecture model from scratch and a tokenizer trained on world text.

It exists so that the whole method runs on two CPU cores in minutes. The tokenizer is byte-level
BPE (any text survives encoding and decoding) with one token for each protocol tag. A word with and
without a leading space are two tokens; their embeddings start as ``e(word)`` and
``e(word) + e(space)``, so that a name copied from the middle of a sentence to the start of a line
need not be learnt anew for every name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from mempo.config import ArchitectureConfig
from mempo.models.induction import fits, wire_induction_head

_TAGS = ("mem", "think", "search", "access", "answer", "information")
_PAD, _END = "<|pad|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
# One token opens a turn and one closes it: glue between turns is most of a short trajectory.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_INITIAL_STD = 0.02
_ROPE_THETA = 1.0e6


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, tag_names: Sequence[str] = _TAGS
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with one token for each chat mark and each of the protocol's
    tags."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tags = [mark for tag in tag_names for mark in (f"<{tag}>", f"</{tag}>")]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(tags),
        min_frequency=2,
        special_tokens=[_PAD, _END, *_ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        additional_special_tokens=list(_ROLES),
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_tiny_model(
    architecture: ArchitectureConfig, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Any:
    """A randomly initialized Qwen2 whose vocabulary is the tokenizer's. Float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=architecture.hidden_size,
                intermediate_size=architecture.intermediate_size,
                num_hidden_layers=architecture.num_hidden_layers,
                num_attention_heads=architecture.num_attention_heads,
                num_key_value_heads=architecture.num_key_value_heads,
                max_position_embeddings=architecture.max_position_embeddings,
                tie_word_embeddings=architecture.tie_word_embeddings,
                rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                initializer_range=_INITIAL_STD,
            )
        )
        _compose_space_embeddings(model, tokenizer)
        if fits(model):
            wire_induction_head(model)
    return model


@torch.no_grad()
def _compose_space_embeddings(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    vocabulary = tokenizer.get_vocab()
    embedding = model.get_input_embeddings().weight  # (V, H)
    space = torch.randn(embedding.shape[1]) * _INITIAL_STD
    # In a fixed order: runs of spaces are composed from shorter ones, and the vocabulary has none.
    for word, index in sorted(vocabulary.items(), key=lambda item: (len(item[0]), item[1])):
        bare = vocabulary.get(word.removeprefix("\u0120")) if word.startswith("\u0120") else None
        if bare is not None:
            embedding[index] = embedding[bare] + space
