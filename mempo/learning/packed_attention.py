"""Attention of rows that are laid end to end, by what the device has a kernel for.

- On a GPU, in half precision: one call of torch's kernel for sequences of any lengths, in which
  every row's keys are the shared ones and its own. It groups heads itself.
- Else the model's own attention (``sdpa``, ``eager``, flash attention's package), once for all rows
  of one length: rows come sorted by it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mempo.learning.shared_prefix import causal_behind_prefix

_SUFFIX = "_of_packed_rows"
_CAUSAL = (-1, 0)
"""As torch's kernel has it: all keys before a query, the last of which stands beside the last
key."""


class Layout(Protocol):
    """How many tokens begin all rows, and how many each row has of its own."""

    @property
    def shared(self) -> int: ...
    @property
    def own(self) -> tuple[int, ...]: ...


@contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Within the block the model's attention takes ``packed_rows``, a ``Layout``."""
    config = model.config
    chosen = config._attn_implementation
    config._attn_implementation = chosen + _SUFFIX
    try:
        yield
    finally:
        config._attn_implementation = chosen


def knows_attention(name: str) -> bool:
    """Whether rows can be laid end to end for ``model.attention=name``."""
    return name in _ATTENTION


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


def _of_packed_rows(name: str) -> Callable[..., Any]:
    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_rows: Layout,
        **settings: Any,
    ) -> tuple[Tensor, None]:
        """``query`` [1, H, S + ∑ L_b, D], ``key`` and ``value`` [1, K, S + ∑ L_b, D]; the output
        is [1, S + ∑ L_b, H, D]."""
        # Flash attention would read rows off the positions.
        settings.pop("position_ids", None)
        states = (query, key, value)
        if name != "eager" and has_kernel(query, value) and not settings.get("softcap"):
            return in_one_call(*states, packed_rows, settings.get("scaling")), None
        return _by_length(name, module, states, packed_rows, settings), None

    return attention


def has_kernel(query: Tensor, value: Tensor) -> bool:
    """Whether torch has a kernel for sequences of any lengths: for half precision (that of
    ``value``, which no rotation has touched), heads of at most 256, on cards since Ampere."""
    device = query.device
    if device.type != "cuda" or value.dtype not in (torch.bfloat16, torch.float16):
        return False
    return query.shape[-1] <= 256 and torch.cuda.get_device_capability(device) >= (8, 0)


def in_one_call(
    query: Tensor, key: Tensor, value: Tensor, rows: Layout, scale: float | None
) -> Tensor:
    """All rows by one kernel; the shared tokens are a sequence of their own, [1, N, H, D]."""
    start = [rows.shared] if rows.shared else []
    queries = [*start, *rows.own]
    keys = [*start, *(rows.shared + length for length in rows.own)]
    first_query, first_key = (_begins(lengths, query.device) for lengths in (queries, keys))
    output = varlen_attn(
        query[0].transpose(0, 1).to(value.dtype),  # (N, H, D)
        _keys_of_rows(key.to(value.dtype), rows),
        _keys_of_rows(value, rows),
        first_query,
        first_key,
        max(queries),
        max(keys),
        scale=scale,
        window_size=_CAUSAL,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, Tensor)
    return output[None]


def _keys_of_rows(states: Tensor, rows: Layout) -> Tensor:
    """[1, K, S + ∑ L_b, D] to [S + ∑ (S + L_b), K, D]: the shared tokens, and again before each
    row's own."""
    tokens = states[0].transpose(0, 1)
    if not rows.shared:
        return tokens
    start, *own = torch.split(tokens, [rows.shared, *rows.own])
    return torch.cat([start, *(part for each in own for part in (start, each))])


def _begins(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Where sequences begin, and where the last one ends."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _by_length(
    name: str,
    module: torch.nn.Module,
    states: tuple[Tensor, Tensor, Tensor],
    rows: Layout,
    settings: dict[str, Any],
) -> Tensor:
    """Rows of one length at a time, [1, S + ∑ L_b, H, D]."""
    equal, behind = _ATTENTION[name]
    runs = [(length, len([*same])) for length, same in groupby(rows.own)]
    sizes = [rows.shared, *(length * count for length, count in runs)]
    start, *own = zip(*(torch.split(each, sizes, dim=2) for each in states), strict=True)
    found: list[Tensor] = []
    if rows.shared:
        found.append(equal(module, *start, None, **settings)[0])  # (1, S, H, D)
    for (length, count), of_run in zip(runs, own, strict=True):
        if not length:
            continue
        query, key, value = (
            each[0].unflatten(1, (count, length)).transpose(0, 1) for each in of_run
        )  # (n, H, L, D)
        if rows.shared:
            key = torch.cat([start[1].expand(count, -1, -1, -1), key], dim=2)
            value = torch.cat([start[2].expand(count, -1, -1, -1), value], dim=2)
        attend = behind if rows.shared else equal
        output, _ = attend(module, query, key, value, None, **settings)  # (n, L, H, D)
        found.append(output.reshape(1, -1, *output.shape[2:]))
    return torch.cat(found, dim=1)


for _name in _ATTENTION:
    # A name that transformers knows no mask for gets none.
    AttentionInterface.register(_name + _SUFFIX, _of_packed_rows(_name))
