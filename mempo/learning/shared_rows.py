"""Rows that begin with the same tokens, computed in one pass over the tokens laid end to end.

The shared beginning stands once, then what is each row's own: [1, S + B · L]. Everything but
attention works on single tokens, so only attention knows of rows. Unlike keys and values that are
kept from a pass before (``shared_prefix``), this is one pass for any rows, as the processes of a
sharded model must have it, and a layer can be computed again in the backward pass from its input
alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import AttentionInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mempo.learning.shared_prefix import causal_behind_prefix
from mempo.models.checkpointing import repeats_attention

_SUFFIX = "_of_shared_rows"


@dataclass(frozen=True)
class SharedRows:
    """``rows`` sequences of ``shared`` + ``own`` tokens, of which the first ``shared`` are the
    same."""

    shared: int
    own: int
    rows: int

    def end_to_end(self, ids: Tensor) -> Tensor:
        """[B, S + L] to [1, S + B · L]."""
        return torch.cat([ids[:1, : self.shared], ids[:, self.shared :].reshape(1, -1)], dim=1)

    def positions(self, device: torch.device) -> Tensor:
        """What the model takes for positions, [1, S + B · L]."""
        return self.end_to_end(
            torch.arange(self.shared + self.own, device=device).expand(self.rows, -1)
        )

    def places(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Where the tokens at ``[rows, columns]``, none of them shared, stand."""
        return columns + rows * self.own


def needs_one_pass(model: Any) -> bool:
    """Whether keys and values cannot be kept for a second pass: layers are computed again in the
    backward pass, or processes must run the same number of passes."""
    if isinstance(model, FSDPModule):
        return True
    return bool(model.training and model.is_gradient_checkpointing)


def rows_forward(model: Any, ids: Tensor, layout: SharedRows) -> Callable[[], Any]:
    """Runs the model over ``ids`` [B, S + L], whose hidden states come as [1, S + B · L, H].

    Raises ``ValueError`` for attention that is not known here, and for gradient checkpointing that
    was not enabled by ``enable_gradient_checkpointing``: it would use other attention when it
    computes layers again.
    """
    chosen = model.config._attn_implementation
    if chosen not in _ATTENTION:
        raise ValueError(
            f"model.attention={chosen} cannot compute prompts once: set "
            "optimizer.share_prompts=false, or model.attention=sdpa"
        )
    if model.training and model.is_gradient_checkpointing and not repeats_attention(model):
        raise ValueError("gradient checkpointing was not enabled by enable_gradient_checkpointing")
    tokens, positions = layout.end_to_end(ids), layout.positions(ids.device)

    def forward() -> Any:
        with _attention(model):
            return model(
                input_ids=tokens, position_ids=positions, use_cache=False, shared_rows=layout
            )

    return forward


@contextmanager
def _attention(model: Any) -> Iterator[None]:
    config = model.config
    chosen = config._attn_implementation
    config._attn_implementation = chosen + _SUFFIX
    try:
        yield
    finally:
        config._attn_implementation = chosen


def _eager(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> Any:
    """The model's own attention, [B, H, Q, D] to [B, Q, H, D], causal to the last of the keys."""
    length, all_length = query.shape[2], key.shape[2]
    forbidden = torch.ones(length, all_length, dtype=torch.bool, device=query.device)
    forbidden = forbidden.triu(all_length - length + 1)
    mask = torch.zeros(length, all_length, dtype=query.dtype, device=query.device)
    mask = mask.masked_fill(forbidden, torch.finfo(query.dtype).min)
    own = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    return own(module, query, key, value, mask[None, None], **settings)


_ATTENTION: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sdpa": (sdpa_attention_forward, causal_behind_prefix),
    "eager": (_eager, _eager),
    "flash_attention_2": (flash_attention_forward, flash_attention_forward),
}
"""Causal attention where there are as many keys as queries, and where there are more: the queries
are then the last."""


def _of_shared_rows(name: str) -> Callable[..., Any]:
    equal, behind = _ATTENTION[name]

    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        shared_rows: SharedRows,
        **settings: Any,
    ) -> tuple[Tensor, None]:
        """``query`` [1, H, S + B · L, D], ``key`` and ``value`` [1, K, S + B · L, D]; the output is
        [1, S + B · L, H, D]."""
        # Flash attention would read rows off the positions.
        settings.pop("position_ids", None)
        first, own = zip(*(_split(each, shared_rows) for each in (query, key, value)), strict=True)
        begun, _ = equal(module, *first, None, **settings)  # (1, S, H, D)
        keys, values = (
            torch.cat([start.expand(shared_rows.rows, -1, -1, -1), rest], dim=2)
            for start, rest in zip(first[1:], own[1:], strict=True)
        )
        ended, _ = behind(module, own[0], keys, values, None, **settings)  # (B, L, H, D)
        return torch.cat([begun, ended.reshape(1, -1, *ended.shape[2:])], dim=1), None

    return attention


def _split(states: Tensor, layout: SharedRows) -> tuple[Tensor, Tensor]:
    """[1, H, S + B · L, D] to [1, H, S, D] and [B, H, L, D]."""
    first, own = torch.split(states, [layout.shared, layout.rows * layout.own], dim=2)
    return first, own[0].reshape(own.shape[1], layout.rows, layout.own, -1).transpose(0, 1)


for _name in _ATTENTION:
    # A name that transformers knows no mask for gets none.
    AttentionInterface.register(_name + _SUFFIX, _of_shared_rows(_name))
