"""The tiny policy and its tokenizer (around the method)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import TAGS, Protocol
from mempo.config import ArchitectureConfig
from mempo.models.tiny import build_tiny_model, train_tokenizer

TEXTS = [
    "<mem>Ann lives in Rome.</mem><think>I need Ann.</think><search>Ann of Rome</search>",
    "Ann  of    Rome lives in    Rome.\nAnn is a friend of Bob. Bob lives in Rome.",
] * 3
SIZES = ArchitectureConfig(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=312,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 312)


def test_the_vocabulary_has_the_asked_size(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == 312
    assert sorted(tokenizer.get_vocab().values()) == list(range(312))


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    text = text.replace("<|", "< |")  # a chat mark is no text: decoding leaves it out
    ids = tokenizer.encode(text, add_special_tokens=False)
    shown = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert shown == text


def test_text_with_tags_and_marks(tokenizer: PreTrainedTokenizerFast) -> None:
    text = " <mem>é 🐙 .</mem>\n<think> a , b !</think><answer>\n</answer> "
    ids = tokenizer.encode(text, add_special_tokens=False)
    shown = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert shown == text
    assert tokenizer.encode("a", add_special_tokens=True) == tokenizer.encode(
        "a", add_special_tokens=False
    )


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_is_one_token(tokenizer: PreTrainedTokenizerFast, tag: str) -> None:
    for mark in (f"<{tag}>", f"</{tag}>"):
        (token,) = tokenizer.encode(mark, add_special_tokens=False)
        assert tokenizer.decode([token], skip_special_tokens=True) == mark
        inside = tokenizer.encode(f"a{mark}b", add_special_tokens=False)
        assert inside == [
            *tokenizer.encode("a", add_special_tokens=False),
            token,
            *tokenizer.encode("b", add_special_tokens=False),
        ]


def test_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    """Marks are single special tokens, and pieces equal the template on the whole conversation."""
    conversation = Conversation(tokenizer, "Be brief.")
    turns = ("<search>Ann</search>", "<information>1. Ann</information>")
    ids = [
        *conversation.prompt_ids("Who?"),
        *conversation.encode(turns[0]),
        *conversation.observation_ids(turns[1]),
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": turns[0]},
        {"role": "user", "content": turns[1]},
    ]
    assert ids == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert "<|" not in conversation.decode(ids)
    assert ids.count(tokenizer.eos_token_id) == 4
    assert conversation.end_ids == {tokenizer.eos_token_id}
    assert tokenizer.pad_token_id not in ids


def test_space_embeddings_are_composed(tokenizer: PreTrainedTokenizerFast) -> None:
    embedding = build_tiny_model(SIZES, tokenizer, 1).get_input_embeddings().weight.detach()
    vocabulary = tokenizer.get_vocab()
    pairs = {
        word: (embedding[index] - embedding[vocabulary[word[1:]]])
        for word, index in vocabulary.items()
        if word.startswith("Ġ") and word[1:] in vocabulary
    }
    assert {"ĠĠ", "ĠĠĠ"} < set(pairs)
    space = pairs["ĠĠ"]
    assert 0.005 < float(space.std()) < 0.05
    for difference in pairs.values():
        torch.testing.assert_close(difference, space, atol=1e-6, rtol=0)


def test_the_same_seed_gives_the_same_model(tokenizer: PreTrainedTokenizerFast) -> None:
    state = torch.random.get_rng_state()
    first, second, other = (build_tiny_model(SIZES, tokenizer, seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    weights = [dict(model.named_parameters()) for model in (first, second, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    name = "model.embed_tokens.weight"
    assert not torch.equal(weights[0][name], weights[2][name])
    assert first.config.vocab_size == len(tokenizer)
    assert first.config.eos_token_id == tokenizer.eos_token_id
    assert all(parameter.dtype == torch.float32 for parameter in first.parameters())


def test_the_tiny_model_starts_with_an_induction_head() -> None:
    """Before any training, the second word of a name that stood before is likelier than chance."""
    architecture = ArchitectureConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=400,
    )
    tokenizer = train_tokenizer(TEXTS, 400)
    model = build_tiny_model(architecture, tokenizer, seed=0)
    generator = torch.Generator().manual_seed(0)
    names = torch.randint(20, len(tokenizer), (16, 8, 2), generator=generator)
    order = torch.randint(0, 8, (16, 30), generator=generator)
    ids = torch.gather(names, 1, order[:, :, None].expand(-1, -1, 2)).reshape(16, 60)
    with torch.no_grad():
        logits = model(ids).logits
    logprobs = logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    first_words, second_words = -logprobs[:, 1::2].mean(), -logprobs[:, 40::2].mean()
    assert second_words < first_words - 1.0


def test_a_tool_of_ones_own_has_one_token_for_each_tag() -> None:
    usual = train_tokenizer(TEXTS, 400)
    own = train_tokenizer(TEXTS, 400, Protocol(("search", "access", "calculate")).tags)
    assert len(usual.tokenize("<calculate>")) > 1
    assert own.tokenize("<calculate>1</calculate>") == ["<calculate>", "1", "</calculate>"]
    assert len(own) == len(usual) + 2
