"""A tiny random model folder of each family of chat models, with the family's own template shape.

Nothing is downloaded: configurations are transformers' own with small sizes, every weight is drawn
anew (norms and biases too, so that one that does not arrive in an engine is seen), and the
tokenizer is trained on the tasks' own kind of text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from mempo.agent.prompts import load_template
from mempo.models.tiny import train_tokenizer
from tests.support.small_tokenizers import template_text

_TEXTS = (
    "<mem>Ann lives in Rome</mem><think>I need her name</think><search>Ann of Rome</search>",
    "<mem>Bob</mem>\n<think>so</think>\n<access>Rome</access>\n<answer>Ann</answer>",
    "<information>1. Ann: Ann was born in Rome.\n2. Bob: Bob is a friend of Ann.</information>",
    "system user assistant You are a helpful assistant. Answer the question. Who is Ann?",
)
_CONTEXT = 1024
_VOCABULARY = 512


def _turns(opening: str, turn: str, generation: str) -> str:
    """A template that writes each message as ``turn``, with ROLE and TEXT in it."""
    body = turn.replace("ROLE", "{{ message['role'] }}").replace("TEXT", "{{ message['content'] }}")
    return (
        opening
        + "{% for message in messages %}"
        + body
        + "{% endfor %}{% if add_generation_prompt %}"
        + generation
        + "{% endif %}"
    )


_CHATML = _turns("", "<|im_start|>ROLE\nTEXT<|im_end|>\n", "<|im_start|>assistant\n")
_GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\\n\\n' %}{% set messages = messages[1:] %}"
    "{% else %}{% set first = '' %}{% endif %}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ first if loop.first else '' }}{{ message['content'] }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set first = messages[0]['content'] + '\\n\\n' %}{% set messages = messages[1:] %}"
    "{% else %}{% set first = '' %}{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'user' %}[INST] {{ first if loop.first else '' }}"
    "{{ message['content'] }}[/INST]{% else %}{{ message['content'] }}</s>{% endif %}{% endfor %}"
)
_PHI = _turns("", "<|ROLE|>\nTEXT<|end|>\n", "<|assistant|>\n")
_OLMO = _turns("<|endoftext|>", "<|ROLE|>\nTEXT<|im_end|>\n", "<|assistant|>\n")
_GLM = _turns("[gMASK]<sop>", "<|ROLE|>\nTEXT", "<|assistant|>\n")
_GRANITE = _turns(
    "",
    "<|start_of_role|>ROLE<|end_of_role|>TEXT<|end_of_text|>\n",
    "<|start_of_role|>assistant<|end_of_role|>",
)
_COHERE = (
    "{{ bos_token }}{% for message in messages %}<|START_OF_TURN_TOKEN|>"
    "{% if message['role'] == 'user' %}<|USER_TOKEN|>{% elif message['role'] == 'system' %}"
    "<|SYSTEM_TOKEN|>{% else %}<|CHATBOT_TOKEN|>{% endif %}{{ message['content'] }}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """``config`` makes the configuration from the vocabulary's size and the ids of the marks that
    begin and end a text; ``marks`` are the special tokens of its template, the last of which ends
    a turn."""

    config: Callable[..., Any]
    template: str
    marks: tuple[str, ...]
    begin: str | None = None


_LEFT_OUT = object()


def _sizes(name: str, **changes: Any) -> Callable[..., Any]:
    common: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": _CONTEXT,
    }
    chosen = {key: value for key, value in (common | changes).items() if value is not _LEFT_OUT}

    def build(**ids: Any) -> Any:
        return getattr(transformers, name)(**chosen, **ids)

    return build


def _falcon(alibi: bool) -> Callable[..., Any]:
    return _sizes(
        "FalconConfig",
        intermediate_size=_LEFT_OUT,
        num_key_value_heads=_LEFT_OUT,
        new_decoder_architecture=False,
        multi_query=True,
        parallel_attn=not alibi,
        bias=alibi,
        alibi=alibi,
    )


_MOE: dict[str, Any] = {"num_experts_per_tok": 2, "sliding_window": None}
_IM = ("<|im_start|>", "<|im_end|>")
_GPT2_SIZES: dict[str, Any] = {
    "hidden_size": _LEFT_OUT,
    "intermediate_size": _LEFT_OUT,
    "num_hidden_layers": _LEFT_OUT,
    "num_attention_heads": _LEFT_OUT,
    "num_key_value_heads": _LEFT_OUT,
    "max_position_embeddings": _LEFT_OUT,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": _CONTEXT,
}
FAMILIES: dict[str, Family] = {
    "llama3": Family(
        _sizes("LlamaConfig", tie_word_embeddings=False),
        template_text("llama3"),
        ("<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<|eot_id|>"),
        "<|begin_of_text|>",
    ),
    "qwen2.5": Family(
        _sizes("Qwen2Config", tie_word_embeddings=True), template_text("qwen2.5"), _IM
    ),
    "qwen3": Family(
        _sizes("Qwen3Config", head_dim=32, tie_word_embeddings=False), template_text("qwen3"), _IM
    ),
    "gemma2": Family(
        _sizes(
            "Gemma2Config",
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=16,
            attn_logit_softcapping=1.0,  # where it shows: scores of random weights are small
            final_logit_softcapping=2.0,
        ),
        _GEMMA,
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<bos>",
    ),
    "gemma3": Family(
        _sizes(
            "Gemma3TextConfig",
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        _GEMMA,
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<bos>",
    ),
    "mistral": Family(
        _sizes("MistralConfig", head_dim=32, sliding_window=None),
        _MISTRAL,
        ("<s>", "[INST]", "[/INST]", "</s>"),
        "<s>",
    ),
    "mistral_window": Family(
        _sizes("MistralConfig", head_dim=32, sliding_window=16),
        _MISTRAL,
        ("<s>", "[INST]", "[/INST]", "</s>"),
        "<s>",
    ),
    "phi": Family(
        _sizes("PhiConfig", num_key_value_heads=2),
        _CHATML,
        _IM,
    ),
    "phi3": Family(
        _sizes("Phi3Config", sliding_window=None),
        _PHI,
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
    "olmo2": Family(_sizes("Olmo2Config"), _OLMO, ("<|endoftext|>", "<|im_end|>")),
    "smollm3": Family(_sizes("SmolLM3Config", use_sliding_window=False), _CHATML, _IM),
    "glm4": Family(
        _sizes("Glm4Config", head_dim=32),
        _GLM,
        ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|user|>"),
    ),
    "glm": Family(
        _sizes("GlmConfig", head_dim=32),
        _GLM,
        ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|user|>"),
    ),
    "granite": Family(
        _sizes(
            "GraniteConfig",
            logits_scaling=8.0,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.015625,
        ),
        _GRANITE,
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    "cohere2": Family(
        _sizes("Cohere2Config", sliding_window=768, logit_scale=0.25),
        _COHERE,
        (
            "<BOS_TOKEN>",
            "<|START_OF_TURN_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
        ),
        "<BOS_TOKEN>",
    ),
    "gpt_neox": Family(_sizes("GPTNeoXConfig", num_key_value_heads=_LEFT_OUT), _CHATML, _IM),
    "gpt2": Family(_sizes("GPT2Config", **_GPT2_SIZES), _CHATML, _IM),
    "qwen3_moe": Family(
        _sizes("Qwen3MoeConfig", head_dim=32, num_experts=4, moe_intermediate_size=64, **_MOE),
        template_text("qwen3"),
        _IM,
    ),
    "mixtral": Family(
        _sizes("MixtralConfig", head_dim=32, intermediate_size=128, num_local_experts=4, **_MOE),
        _MISTRAL,
        ("<s>", "[INST]", "[/INST]", "</s>"),
        "<s>",
    ),
    "falcon": Family(_falcon(alibi=False), _CHATML, _IM),
    "falcon_alibi": Family(_falcon(alibi=True), _CHATML, _IM),
}


def write_family(name: str, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """Writes the family's folder and returns the model (float32, eval mode). ``changes`` are set in
    its configuration."""
    family = FAMILIES[name]
    tokenizer = train_tokenizer(
        (*_TEXTS, load_template("compact").render(question="Who?")) * 4, _VOCABULARY
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(family.marks)})
    tokenizer.eos_token = family.marks[-1]
    tokenizer.bos_token = family.begin
    tokenizer.chat_template = family.template
    config = family.config(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
    draw_weights(model, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@torch.no_grad()
def draw_weights(model: Any, seed: int) -> None:
    """Moves every weight a little, norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
