"""Whether a weight sync brought every weight (specification section 10).

vLLM only warns of a weight that never came, and of a layer that it loads in part it keeps what its
memory held before. So the first sync of an engine is proven: every number that the engine computes
with is marked beforehand, NaN, and so is the memory that vLLM loads into. What is still marked
afterwards did not come. This also sees a weight that is all zeros, a part of a fused layer, and
what vLLM packs for its CPU kernels and takes out of the model's parameters, all of which a
comparison of checksums before and after would miss. Later syncs must bring the same names.

The functions take the engine's model, and run in its worker (``LLM.apply_model``).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from mempo.engine.errors import EngineError

_SHOWN: Final = 5


def _marked(*arguments: Any) -> NoReturn:
    """In place of a packed layer's product until the layer is loaded."""
    raise EngineError("the engine was used while its weights were being loaded")


def mark_weights(model: Any) -> None:
    """Makes every weight NaN, and every packed one unusable."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(torch.nan)
    for _, layer in _packed(model):
        layer.cpu_linear = _marked


@contextmanager
def new_memory_marked() -> Iterator[None]:
    """Within the block memory that torch allocates is NaN where nothing is written into it."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = before[2]  # type: ignore[attr-defined]


def marked_weights(model: Any, delivered: Collection[str]) -> list[str]:
    """The weights that are still marked, in the model's order; of a fused layer
    (``qkv_proj``) the parts that are not among the ``delivered`` names."""
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", None) or {}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found = [name for name, tensor in tensors if _has_nan(tensor)]
    found += [f"{name}.weight" for name, layer in _packed(model) if _packed_has_nan(layer)]
    return [part for name in found for part in _missing_parts(name, fused, delivered)]


class CountedNames:
    """Passes weights on and keeps their names."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.names: set[str] = set()
        self._weights = weights

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self._weights:
            self.names.add(name)
            yield name, value


def refuse_missing(missing: Iterable[str], delivered: Collection[str]) -> None:
    """Raises ``EngineError`` with the names that a sync did not bring, if there are any."""
    names = list(missing)
    if not delivered:
        raise EngineError("the weight sync brought no weights: the engine cannot sample from it")
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise EngineError(
            f"the weight sync brought {len(delivered)} weights, and the engine's model lacks "
            f"{', '.join(names[:_SHOWN])}{more}: sampling would mix old and new weights"
        )


def _packed(model: Any) -> list[tuple[str, Any]]:
    """The layers whose weight is only in the packed copy of vLLM's CPU kernels."""
    return [
        (name, layer)
        for name, layer in model.named_modules()
        if hasattr(layer, "cpu_linear") and layer.weight.numel() == 0
    ]


def _packed_has_nan(layer: Any) -> bool:
    """A product with ones is NaN in each output that a NaN takes part in."""
    if layer.cpu_linear is _marked:
        return True
    weight = layer.weight
    ones = torch.ones(1, layer.input_size_per_partition, dtype=weight.dtype, device=weight.device)
    return _has_nan(layer.cpu_linear(ones, weight, None))


def _has_nan(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _missing_parts(
    name: str, fused: dict[str, list[str]], delivered: Collection[str]
) -> Iterator[str]:
    for whole, parts in fused.items():
        if f".{whole}." in name:
            names = [name.replace(f".{whole}.", f".{part}.") for part in parts]
            missing = [one for one in names if one not in delivered]
            if missing:
                yield from missing
                return
    yield name
