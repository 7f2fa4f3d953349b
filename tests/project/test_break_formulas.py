"""The deliberate faults of ``make break-formulas`` still find their places (around the method)."""

from __future__ import annotations

import pytest

from scripts.break_formulas import BREAKS, ROOT, Break, files_of


@pytest.mark.parametrize("entry", BREAKS, ids=lambda entry: entry.name)
def test_a_fault_stands_in_one_place_and_its_tests_exist(entry: Break) -> None:
    text = (ROOT / "mempo" / entry.file).read_text(encoding="utf-8")
    assert text.count(entry.old) == 1
    assert entry.new not in text or entry.new in entry.old
    assert len(files_of(ROOT, entry)) == len(entry.tests.split())
