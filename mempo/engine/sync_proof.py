"""Proof that a weight sync reached every parameter of the engine (specification section 10).

vLLM only warns when a weight does not come, and the engine would go on sampling from what it had;
where a part of a layer is missing (k of q, k and v), its place holds whatever memory held. So an
engine's first sync is proven in two ways: every name that the engine's parameters ask for must have
come, and, since all parameters were set to zero before, none may be zero still unless what was
loaded into it is. What a later sync brings must bear the same names.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from torch import Tensor

_EMPTY: Final = hashlib.sha256(b"").hexdigest()
"""The digest of a parameter whose values vLLM holds elsewhere, packed for a CPU's kernel."""

_KNOWN_NAMES = 0.5
"""Share of the engine's names that must have come for the others to be missed: families whose files
have other names than the engine's parameters are proven by their digests alone."""


class Delivery:
    """The weights of one sync as they pass: their names, and which of them are zero throughout
    (asked only where ``look``, since it reads every value)."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]], look: bool) -> None:
        self.names: set[str] = set()
        self.zero: set[str] = set()
        self._weights = weights
        self._look = look

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self._weights:
            self.names.add(name)
            if self._look and not bool(value.any()):
                self.zero.add(name)
            yield name, value

    def rename(self, renamed: Callable[[str], str | None]) -> None:
        """Adds what the engine calls the names that came (GPT-NeoX's output layer)."""
        for names in (self.names, self.zero):
            names |= {new for name in [*names] if (new := renamed(name)) is not None}


def undelivered(
    zeroed: Mapping[str, str],
    loaded: Mapping[str, str],
    delivery: Delivery,
    packed: Mapping[str, Sequence[str]],
) -> list[str]:
    """What the sync did not bring, sorted; by the engine's names, a packed layer by its parts.

    ``zeroed`` and ``loaded`` are digests by the engine's name, after setting everything to zero and
    after the sync. ``packed`` says which layers the engine holds in one (``qkv_proj``: q, k, v).
    """
    came, zero = _endings(delivery.names), _endings(delivery.zero)
    sources = {name: _sources(name, packed, came) for name in loaded}
    wanted = {source for parts in sources.values() for source in parts}
    missing = {source for source in wanted if source not in came}
    if len(missing) > len(wanted) * (1 - _KNOWN_NAMES) and delivery.names:
        missing = set()
    for name, digest in loaded.items():
        untouched = digest == zeroed.get(name) != _EMPTY
        if untouched and not all(source in zero for source in sources[name]):
            missing |= {source for source in sources[name] if source not in zero}
    return sorted(missing)


def packed_layers(model: Any) -> dict[str, tuple[str, ...]]:
    """Which layers of a vLLM model hold several of the Hugging Face model's."""
    mapping = getattr(model, "packed_modules_mapping", None) or {}
    return {whole: tuple(parts) for whole, parts in mapping.items()}


def renaming(model: Any) -> Callable[[str], str | None]:
    """What a vLLM model calls a weight of a file, beside the packing of layers."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None:
        return lambda name: None
    return cast(
        Callable[[str], str | None], dataclasses.replace(mapper, orig_to_new_stacked={}).map_name
    )


def _sources(name: str, packed: Mapping[str, Sequence[str]], came: set[str]) -> list[str]:
    """The names of what is loaded into an engine's parameter, as endings: without the worker's
    place (``tp0:``) and without the first part (``model.``), which differ. A layer that files hold
    in one as well (GLM's ``gate_up_proj``) is its own."""
    plain = _ending(name.rpartition(":")[2])
    if plain in came:
        return [plain]
    for whole, parts in packed.items():
        if f".{whole}." in f".{plain}":
            return [plain.replace(f"{whole}.", f"{part}.") for part in parts]
    return [plain]


def _endings(names: Iterable[str]) -> set[str]:
    return {_ending(name) for name in names}


def _ending(name: str) -> str:
    """The name from its layer's number on (``layers.3.mlp…``), or its last two parts."""
    parts = name.split(".")
    numbered = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbered[0] - 1 :] if numbered else parts[-2:])
