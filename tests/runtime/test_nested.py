"""Nested mappings as flat ones (around the method)."""

from __future__ import annotations

from mempo.runtime.nested import leaves


def test_paths_in_order_and_empty_mappings_as_values() -> None:
    nested = {"a": {"b": {"c": 1}, "d": [{"e": 2}]}, "f": None, "g": {}, 3: {"h": False}}
    flat = {"a.b.c": 1, "a.d": [{"e": 2}], "f": None, "g": {}, "3.h": False}
    assert leaves(nested) == flat
    assert list(leaves(nested)) == list(flat)
    assert leaves({}) == {}
