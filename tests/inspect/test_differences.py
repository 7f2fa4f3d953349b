"""What changed from one memory to the next (around the method)."""

from __future__ import annotations

import pytest

from mempo.inspect.differences import memory_difference


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", []),
        ("a b", "a  b ", [("same", "a  b")]),
        ("", "a b", [("added", "a b")]),
        ("a b", "", [("removed", "a b")]),
        ("a b c", "a x c d", [("same", "a "), ("removed", "b "), ("added", "x "), ("same", "c "),
                              ("added", "d")]),
        ("a\nb", "b", [("removed", "a\n"), ("same", "b")]),
    ],
)  # fmt: skip
def test_difference_of_memories(before: str, after: str, expected: list[tuple[str, str]]) -> None:
    pieces = memory_difference(before, after)
    assert pieces == expected
    assert "".join(text for kind, text in pieces if kind != "removed") == after.strip()
