"""A start for the tiny model: one induction head, wired by hand.

A transformer of this size learns words and forms within a hundred steps, and then needs thousands
more until it finds out how to copy a name that it has read, which is all that its task is made of.
Those steps are hours on two cores. So the tiny model starts with the circuit that such models are
known to arrive at (Olsson et al. 2022, arXiv 2209.11895): a head of the first layer that tells each
position what the token before it was, and a head of the second layer that finds earlier positions
which followed the current token, and copies what stood there. Everything else is random, and all of
it is trained.

The residual stream is split in two: the embedding fills the first half, the first layer's head
writes the previous token's embedding into the second half.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_PREVIOUS_SHARPNESS = 6.0
_PREVIOUS_PAIRS = 8
_MATCH_SCORE = 12.0
_COPY_GAIN = 2.0
_FINAL_GAIN = 3.0
_LONGEST_DISTANCE = 400.0


def fits(model: Any) -> bool:
    """Whether the circuit can be wired: two layers, and an even number of heads, all with their
    own keys and values, so that half of a layer's heads carry half of the model's width."""
    config = model.config
    return bool(
        config.num_hidden_layers >= 2
        and config.num_attention_heads % 2 == 0
        and config.num_key_value_heads == config.num_attention_heads
    )


@torch.no_grad()
def wire_induction_head(model: Any) -> None:
    """Overwrites the first half of the heads in the first two layers, the embedding's second half
    and the final norm's gain. Call it on a freshly initialized Qwen2 model for which ``fits`` is
    true."""
    half = model.config.hidden_size // 2
    embedding = model.get_input_embeddings().weight  # (V, H)
    embedding[:, half:] = 0.0
    scale = float(embedding[:, :half].std())
    frequencies = _frequencies(model)
    _wire_previous_token(model.model.layers[0].self_attn, frequencies, half, scale)
    _wire_match_and_copy(model.model.layers[1].self_attn, frequencies, half, scale)
    model.model.norm.weight.fill_(_FINAL_GAIN)


def _frequencies(model: Any) -> torch.Tensor:
    """Angle per position of each rotary pair of a head, [head / 2]."""
    head = model.config.hidden_size // model.config.num_attention_heads
    theta = float(model.config.rope_parameters["rope_theta"])
    return torch.tensor(theta).pow(-torch.arange(0, head, 2, dtype=torch.float32) / head)


def _wire_previous_token(
    attention: Any, frequencies: torch.Tensor, half: int, scale: float
) -> None:
    """Attends one position back: constant queries and keys whose rotary angles differ by one
    step. Moves the content there into the second half of the residual stream."""
    pairs = len(frequencies)
    query, key = torch.zeros(2 * pairs), torch.zeros(2 * pairs)
    for pair in range(min(_PREVIOUS_PAIRS, pairs)):
        angle = float(frequencies[pair])
        query[pair] = _PREVIOUS_SHARPNESS
        key[pair] = _PREVIOUS_SHARPNESS * math.cos(angle)
        key[pair + pairs] = _PREVIOUS_SHARPNESS * math.sin(angle)
    heads = half // (2 * pairs)
    attention.q_proj.bias[:half] = query.repeat(heads)
    attention.k_proj.bias[:half] = key.repeat(heads)
    attention.q_proj.weight[:half] = 0.0
    attention.k_proj.weight[:half] = 0.0
    identity = torch.eye(half)
    # The layer's input is normalized to a root mean square of 1 over both halves, of which one is
    # still empty: content arrives with sqrt(2).
    attention.v_proj.weight[:half] = torch.cat([identity, torch.zeros(half, half)], dim=1)
    attention.o_proj.weight[:, :half] = torch.cat(
        [torch.zeros(half, half), identity * scale / math.sqrt(2.0)], dim=0
    )


def _wire_match_and_copy(
    attention: Any, frequencies: torch.Tensor, half: int, scale: float
) -> None:
    """Matches the current content with what preceded earlier positions, on the rotary pairs that
    turn little over a trajectory, and copies the content found. Each head matches another random
    projection of the content and copies its own part."""
    pairs = len(frequencies)
    slow = [pair for pair in range(pairs) if float(frequencies[pair]) * _LONGEST_DISTANCE < 1.0]
    rows = [*slow, *(pair + pairs for pair in slow)]
    matching = torch.zeros(half, half)
    for first in range(0, half, 2 * pairs):
        projection = torch.linalg.qr(torch.randn(half, half))[0]
        matching[[first + row for row in rows]] = projection[: len(rows)]
    # score = gain^2 * |projection * content|^2 / sqrt(head), and every component is about 1
    gain = math.sqrt(_MATCH_SCORE * math.sqrt(2 * pairs) / len(rows))
    empty = torch.zeros(half, half)
    attention.q_proj.weight[:half] = torch.cat([matching * gain, empty], dim=1)
    attention.k_proj.weight[:half] = torch.cat([empty, matching * gain], dim=1)
    identity = torch.eye(half)
    attention.v_proj.weight[:half] = torch.cat([identity, empty], dim=1)
    attention.o_proj.weight[:, :half] = torch.cat([identity * _COPY_GAIN * scale, empty], dim=0)
