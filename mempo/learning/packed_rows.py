"""Rows computed in one pass over their tokens laid end to end, without padding.

What all rows begin with may stand once, before what is each row's own: [1, S + ∑ L_b]. Everything
but attention works on single tokens, so only attention knows of rows (``packed_attention``).
Unlike keys and values that are kept from a pass before (``shared_prefix``), this is one pass for
any rows, as the processes of a sharded model must have it, and a layer can be computed again in
the backward pass from its input alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from mempo.learning.packed_attention import knows_attention, packed_attention
from mempo.learning.shared_prefix import unsupported_reason
from mempo.models.checkpointing import repeats_attention


@dataclass(frozen=True)
class PackedRows:
    """Rows of ``shared`` + ``own[b]`` tokens, of which the first ``shared`` are the same."""

    shared: int
    own: tuple[int, ...]

    @classmethod
    def of(cls, attention_mask: Tensor, shared: int) -> PackedRows:
        """The layout of right-padded rows, whose real tokens have 1 in the mask, [B, T]."""
        lengths = attention_mask.sum(-1).tolist()
        return cls(shared, tuple(int(length) - shared for length in lengths))

    def end_to_end(self, rows: Tensor) -> Tensor:
        """[B, T] to [1, S + ∑ L_b]."""
        own = [rows[b, self.shared : self.shared + length] for b, length in enumerate(self.own)]
        return torch.cat([rows[0, : self.shared], *own])[None]

    def positions(self, device: torch.device) -> Tensor:
        """What the model takes for positions, [1, S + ∑ L_b]."""
        longest = self.shared + max(self.own)
        return self.end_to_end(torch.arange(longest, device=device).expand(len(self.own), -1))

    def places(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Where the tokens at ``[rows, columns]`` stand; those that are shared only as the last of
        the first row's."""
        return columns + torch.tensor(self._begun, device=rows.device)[rows]

    @cached_property
    def _begun(self) -> list[int]:
        """Own tokens before each row."""
        return [0, *accumulate(self.own)][:-1]


def packs_rows(setting: bool | None, model: Any) -> bool:
    """Whether passes over ``model`` lay rows end to end: where ``setting``, or the device if that
    is ``None``, says so, and the model's attention is known here."""
    if setting is None:
        setting = next(model.parameters()).device.type == "cuda"
    known = knows_attention(model.config._attn_implementation)
    return setting and known and unsupported_reason(model) is None


def needs_one_pass(model: Any) -> bool:
    """Whether keys and values cannot be kept for a second pass: layers are computed again in the
    backward pass, or processes must run the same number of passes."""
    if isinstance(model, FSDPModule):
        return True
    return bool(model.training and model.is_gradient_checkpointing)


def packed_forward(model: Any, ids: Tensor, layout: PackedRows) -> Callable[[], Any]:
    """Runs the model over ``ids`` [B, T], whose hidden states come as [1, S + ∑ L_b, H].

    Raises ``ValueError`` for attention that is not known here, and for gradient checkpointing that
    was not enabled by ``enable_gradient_checkpointing``: it would use other attention when it
    computes layers again.
    """
    chosen = model.config._attn_implementation
    if not knows_attention(chosen):
        raise ValueError(
            f"model.attention={chosen} cannot compute rows end to end: set "
            "optimizer.share_prompts=false and optimizer.pack_rows=false, or model.attention=sdpa"
        )
    if model.training and model.is_gradient_checkpointing and not repeats_attention(model):
        raise ValueError("gradient checkpointing was not enabled by enable_gradient_checkpointing")
    tokens, positions = layout.end_to_end(ids), layout.positions(ids.device)

    def forward() -> Any:
        with packed_attention(model):
            return model(
                input_ids=tokens, position_ids=positions, use_cache=False, packed_rows=layout
            )

    return forward
