"""Small tokenizers with the special and added tokens of model families, as those ship them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.small_tokenizers import template_text


@dataclass(frozen=True)
class Family:
    """Control tokens: ``special`` ones, and ``added`` ones that are not called special."""

    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    end: str = "<|im_end|>"
    begin: str | None = None
    template: str = "chatml"


def _bars(*names: str) -> tuple[str, ...]:
    return tuple(f"<|{name}|>" for name in names)


_QWEN = _bars(
    *("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start"),
    *("box_end", "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad"),
    *("image_pad", "video_pad"),
)
_QWEN_ADDED = (
    "<tool_call>",
    "</tool_call>",
    *_bars("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep"),
)
FAMILIES: dict[str, Family] = {
    "qwen2.5": Family(_QWEN, _QWEN_ADDED),
    "qwen3": Family(
        _QWEN, (*_QWEN_ADDED, "<tool_response>", "</tool_response>", "<think>", "</think>")
    ),
    "llama3": Family(
        _bars(
            *("begin_of_text", "end_of_text", "reserved_special_token_0", "finetune_right_pad_id"),
            *("step_id", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag"),
        ),
        end="<|eot_id|>",
        begin="<|begin_of_text|>",
        template="llama3",
    ),
    "mistral": Family(
        (
            *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
            *("[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[control_8]"),
        ),
        end="</s>",
        begin="<s>",
    ),
    "glm4": Family(
        (
            *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
            *_bars("system", "user", "assistant", "observation", "begin_of_image", "end_of_image"),
        ),
        end="<|user|>",
    ),
    "smollm2": Family(
        (
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>"),
            *("<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>"),
            *("<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>"),
            *("<jupyter_output>", "<jupyter_script>", "<empty_output>"),
        ),
        template="smollm2",
    ),
}


def make_family(family: str, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with one family's tokens; ``odd`` has none but an end mark."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokens = FAMILIES.get(family, Family(("<|im_end|>",)))
    tokenizer.add_special_tokens(list(tokens.special))
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in tokens.added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=tokens.end,
        bos_token=tokens.begin,
        unk_token="<unk>" if "<unk>" in tokens.special else None,
        chat_template=template_text(tokens.template),
        clean_up_tokenization_spaces=False,
    )
