"""Which chat templates work, and what is said of those that do not (specification section 4)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mempo.agent.conversation import Conversation
from mempo.runtime.errors import MempoError
from tests.support.control_tokens import make_family
from tests.support.small_tokenizers import template_text

SYSTEM = "Be terse and right."
LEAVE_OUT = "model.system_prompt=null"
REPLACE = "model.chat_template=<file>"


def tokenizer_with(template: Any) -> Any:
    tokenizer = make_family("mistral")
    tokenizer.add_special_tokens(
        {
            "additional_special_tokens": [
                *("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
                *("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<|end_of_turn|>"),
            ]
        }
    )
    tokenizer.chat_template = template
    return tokenizer


def conversation_with(name: str, system: str | None = SYSTEM) -> Conversation:
    return Conversation(tokenizer_with(template_text(name)), system)


WORKING = [
    ("chatml", SYSTEM),
    ("chatml", None),
    ("qwen2.5", SYSTEM),
    ("qwen2.5", None),
    ("qwen3", SYSTEM),
    ("qwen3", None),
    ("llama3", SYSTEM),
    ("smollm2", SYSTEM),
    ("gemma2", None),
    ("mistral0.1", None),
]


@pytest.mark.parametrize(("name", "system"), WORKING)
def test_templates_that_work_equal_the_template_on_the_whole(name: str, system: str | None) -> None:
    conversation = conversation_with(name, system)
    observation = "<information>1. Ann: Ann is old.</information>"
    answers = ("<search>Ann</search>", "<answer>Ann</answer>")
    ids = conversation.prompt_ids("Who?")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "Who?"})
    for text in answers:
        ids += [*conversation.encode(text), *conversation.observation_ids(observation)]
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": observation},
        ]
    whole = conversation.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert ids == whole
    text = conversation.tokenizer.decode(whole)
    assert (SYSTEM in text) == (system is not None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gemma2", "System role not supported"), ("mistral0.1", "roles must alternate")],
)
def test_a_template_that_refuses_a_system_message(name: str, reason: str) -> None:
    with pytest.raises(MempoError) as caught:
        conversation_with(name)
    said = str(caught.value)
    assert said.startswith("the chat template refuses a system message (")
    assert reason in said
    assert f"{LEAVE_OUT} leaves it out, or" in said
    assert REPLACE in said


@pytest.mark.parametrize(
    ("name", "system", "generation", "turn"),
    [
        ("llama2", SYSTEM, " [/INST]", " [/INST] "),
        ("llama2", None, " [/INST]", " [/INST] "),
        ("mistral0.3", None, "[/INST]", "[/INST] "),
        (
            *("r1_distill", SYSTEM),
            *("<\uff5cAssistant\uff5c><think>\\n", "<\uff5cAssistant\uff5c>"),
        ),
        ("vicuna", SYSTEM, " ASSISTANT:", " ASSISTANT: "),
        (
            *("openchat3.5", SYSTEM),
            *("<|end_of_turn|>GPT4 Correct Assistant:", "<|end_of_turn|>GPT4 Correct Assistant: "),
        ),
        ("glm4", SYSTEM, "<|assistant|>", "<|assistant|>\\n"),
    ],
)
def test_a_generation_prompt_that_is_not_how_a_turn_starts(
    name: str, system: str | None, generation: str, turn: str
) -> None:
    with pytest.raises(MempoError) as caught:
        conversation_with(name, system)
    assert str(caught.value) == (
        f"the chat template's generation prompt ('{generation}' after the question) is not how it "
        f"starts an assistant turn ('{turn}'), so a conversation cannot be continued piece by "
        "piece: give another template with model.chat_template=<file>, in which the two are equal"
    )


def test_a_template_that_moves_the_system_message() -> None:
    """Mistral 0.3 shows it before the last user turn."""
    with pytest.raises(MempoError) as caught:
        conversation_with("mistral0.3")
    assert "once the conversation goes on" in str(caught.value)
    assert LEAVE_OUT in str(caught.value)
    assert REPLACE in str(caught.value)


def test_a_template_that_leaves_the_system_message_out() -> None:
    template = template_text("chatml").replace(
        "{% for message in messages %}", "{% for message in messages if message.role != 'system' %}"
    )
    with pytest.raises(MempoError, match="leaves the system message out") as caught:
        Conversation(tokenizer_with(template), SYSTEM)
    assert LEAVE_OUT in str(caught.value)
    Conversation(tokenizer_with(template), None)


def test_a_template_that_fails_whatever_the_system_message() -> None:
    with pytest.raises(MempoError, match=r"fails on a conversation \(no\).*chat_template=<file>"):
        Conversation(tokenizer_with("{{ raise_exception('no') }}"), SYSTEM)
    with pytest.raises(MempoError, match=r"fails on a conversation \(.*chat_template=<file>"):
        Conversation(tokenizer_with("{% for %}"), None)


def test_several_named_templates() -> None:
    named = {"tool_use": template_text("chatml"), "rag": template_text("chatml")}
    with pytest.raises(MempoError, match=r"several chat templates \(tool_use, rag\)") as caught:
        Conversation(tokenizer_with(named), SYSTEM)
    assert "model.chat_template=<file>" in str(caught.value)
    with_default = tokenizer_with(named | {"default": template_text("chatml")})
    ids = Conversation(with_default, SYSTEM).prompt_ids("Who?")
    assert ids == conversation_with("chatml").prompt_ids("Who?")


def test_the_template_of_the_docs_works_for_mistral() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat_templates.md").read_text(encoding="utf-8")
    (template,) = (line.strip() for line in page.splitlines() if line.startswith("    {{"))
    conversation = Conversation(tokenizer_with(template), None)
    assert conversation.glue.before == "</s>[INST] "
    assert conversation.glue.after == "[/INST]"


@pytest.mark.parametrize("template", [None, "", {}])
def test_no_template(template: Any) -> None:
    with pytest.raises(MempoError, match=re.escape("no chat template: use an instruction-tuned")):
        Conversation(tokenizer_with(template), SYSTEM)
