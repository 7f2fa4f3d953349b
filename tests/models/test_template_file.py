"""``model.chat_template``, a file in place of the tokenizer's own (specification section 4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from mempo.agent.conversation import Conversation
from mempo.models.loading import load_tokenizer
from mempo.runtime.errors import ConfigError, MempoError
from tests.support.control_tokens import make_family
from tests.support.small_tokenizers import template_text

SYSTEM = "You are a helpful assistant."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer whose own template refuses a system message."""
    tokenizer = make_family("mistral")
    tokenizer.chat_template = template_text("gemma2")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path


def test_the_file_replaces_the_template_and_is_saved_with_the_tokenizer(folder: Path) -> None:
    with pytest.raises(MempoError, match="refuses a system message"):
        Conversation(load_tokenizer(str(folder / "model")), SYSTEM)
    file = folder / "chatml.jinja"
    file.write_text(template_text("chatml") + "\n")
    tokenizer = load_tokenizer(str(folder / "model"), str(file))
    assert tokenizer.chat_template == template_text("chatml")
    ids = Conversation(tokenizer, SYSTEM).prompt_ids("Who?")
    tokenizer.save_pretrained(folder / "trained")
    file.unlink()
    again = AutoTokenizer.from_pretrained(folder / "trained")
    assert Conversation(again, SYSTEM).prompt_ids("Who?") == ids


def test_a_template_that_is_not_there_or_none(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.chat_template=none\.jinja: no such file"):
        load_tokenizer(str(folder / "model"), "none.jinja")
    file = folder / "broken.jinja"
    file.write_text("{% for message in messages %}")
    with pytest.raises(ConfigError, match=r"broken\.jinja: no chat template \("):
        load_tokenizer(str(folder / "model"), str(file))
