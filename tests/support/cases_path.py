"""Where the cases with right values stand: beside the specification, or their copy in here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    ROOT.parent / "shared" / "cases",
    ROOT / "shared" / "cases",
    ROOT / "tests" / "cases",
)


def case_file(name: str) -> Path:
    """The path of ``name``. Raises ``FileNotFoundError`` when no folder holds it."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name} is in none of {[str(folder) for folder in FOLDERS]}")


def load_cases(name: str) -> list[dict[str, Any]]:
    """The cases of one file. A file without cases is an error: its test would check nothing."""
    cases: list[dict[str, Any]] = json.loads(case_file(name).read_text(encoding="utf-8"))
    assert cases, f"{case_file(name)} holds no case"
    return cases
