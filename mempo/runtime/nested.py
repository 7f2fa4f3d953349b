"""Nested mappings as flat ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leaves(node: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Every value that is no mapping under its path, ``a.b.c``, in order. An empty mapping is a
    value too."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        nested = isinstance(value, Mapping) and value
        found.update(leaves(value, name) if nested else {name: value})
    return found
