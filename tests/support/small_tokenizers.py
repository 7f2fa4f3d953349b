"""Small tokenizers that cut tags differently, each with any of the chat templates in templates/.

- ``merged``: byte-level BPE in which ``><``, ``></`` and ``>\\n`` are one token, as in SmolLM2
- ``tags``: the tiny policy's own, one token for each tag
- ``bytes``: byte-level without merges, one token for each byte
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mempo.agent.conversation import Conversation
from mempo.models.tiny import train_tokenizer

TEMPLATES = ("qwen2.5", "qwen3", "llama3", "smollm2")
TOKENIZERS = ("merged", "tags", "bytes")
SYSTEM = "You are a helpful assistant."

_FOLDER = Path(__file__).resolve().parent / "templates"
_MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
_TEXTS = (
    "<mem>Ann lives in Rome</mem><think>I need her name</think><search>Ann of Rome</search>",
    "<mem></mem><think></think><search></search>",
    "<mem>Bob</mem>\n<think>so</think>\n<access>Rome</access>\n<answer>Ann</answer>",
    "<information>1. Ann: Ann was born in Rome.\n2. Bob: Bob is a friend of Ann.</information>",
    "system user assistant You are a helpful assistant. Answer the question. Who is Ann?",
)
# Qwen's way of cutting words: punctuation keeps the line breaks that follow it.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def template_text(name: str) -> str:
    """A chat template as its model family ships it (shortened to plain messages)."""
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")


@cache
def make_tokenizer(kind: str, template: str = "qwen2.5") -> PreTrainedTokenizerFast:
    """One of ``TOKENIZERS`` with one of ``TEMPLATES``; do not change it, it is shared."""
    if kind == "tags":
        tokenizer = train_tokenizer(_TEXTS * 4, 400)
    else:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=_byte_level(kind), clean_up_tokenization_spaces=False
        )
    tokenizer.add_special_tokens({"additional_special_tokens": list(_MARKS)})
    llama = template == "llama3"
    tokenizer.eos_token = "<|eot_id|>" if llama else "<|im_end|>"
    tokenizer.bos_token = "<|begin_of_text|>" if llama else None
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.chat_template = template_text(template)
    return tokenizer


@cache
def make_conversation(kind: str, template: str = "qwen2.5") -> Conversation:
    """The conversation glue of ``make_tokenizer``."""
    return Conversation(make_tokenizer(kind, template), SYSTEM)


def _byte_level(kind: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE({mark: i for i, mark in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    elif kind == "merged":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(_TEXTS * 4, trainer)
    else:
        raise ValueError(f"there is no tokenizer {kind!r}")
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
