"""Small files in the shapes that people have: those beside the checkout, else the copies here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def borders(kind: str) -> Path:
    """The folder of ``questions`` or ``corpora``."""
    beside = ROOT.parent / "shared" / "borders" / kind
    return beside if beside.is_dir() else ROOT / "tests" / "fixtures" / "borders" / kind
