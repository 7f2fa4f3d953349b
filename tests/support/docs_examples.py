"""The examples of a page in docs/."""

from __future__ import annotations

import re

from tests.support.programs import ROOT


def example(page: str, language: str, section: str = "") -> str:
    """The first block of a language in the page, or behind a heading of it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text[text.index(f"\n## {section}\n") :]
    found = re.search(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page} has no example in {language}"
    return found[1]


def commands(page: str) -> list[list[str]]:
    """What follows ``python train.py`` in the page's indented lines, split into arguments."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split() for line in re.findall(r"^    python train\.py (.+)$", text, re.MULTILINE)]
