"""The real small model that comes with a package."""

from __future__ import annotations

import torch

from mempo.conversation import Conversation
from mempo.models.smollm2 import load_packaged_smollm2


def test_the_packaged_model_loads_and_speaks_its_own_template() -> None:
    model, tokenizer = load_packaged_smollm2()
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    conversation = Conversation(tokenizer, "You are a helpful assistant.")
    ids = conversation.prompt_ids("What is the capital of France?")
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    assert "Paris" in conversation.decode(out[0, len(ids) :].tolist())
