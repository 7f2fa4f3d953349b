"""The engine's log-probabilities against the trainer's (specification section 10)."""

from __future__ import annotations

import torch

from mempo.engine.interface import Generation, Sampling
from mempo.engine.vllm_engine import Engine
from mempo.learning.logprobs import WantedTokens, token_logprobs


def generate(
    engine: Engine, prompts: list[list[int]], sampling: Sampling, tokens: int = 40, seed: int = 7
) -> list[Generation]:
    for index, prompt in enumerate(prompts):
        engine.submit(str(index), prompt, tokens, seed + index, sampling)
    done: dict[str, Generation] = {}
    while engine.has_unfinished():
        done.update({generation.key: generation for generation in engine.step()})
    return [done[str(index)] for index in range(len(prompts))]


def trainer_logprobs(
    model: torch.nn.Module, prompt: list[int], ids: list[int], temperature: float
) -> torch.Tensor:
    row = torch.tensor([prompt + ids])
    wanted = torch.zeros_like(row, dtype=torch.bool)
    wanted[:, len(prompt) :] = True
    with torch.no_grad():
        result = token_logprobs(model, WantedTokens(row, torch.ones_like(row), wanted), temperature)
    return result.logprobs[0, len(prompt) :]


def assert_engine_agrees(
    engine: Engine, model: torch.nn.Module, temperature: float, limit: float = 1e-4
) -> None:
    # Prompts that share their beginning, so that cached prefixes are in play.
    prompts = [[*range(10, 60)], [*range(10, 60), 70, 71], [*range(10, 58), 90]]
    for prompt, generation in zip(
        prompts, generate(engine, prompts, Sampling(temperature)), strict=True
    ):
        ours = trainer_logprobs(model, prompt, generation.ids, temperature)
        assert torch.allclose(torch.tensor(generation.logprobs), ours, atol=limit, rtol=0)
