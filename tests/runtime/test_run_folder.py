"""The names of a run folder's files are written out in one place (around the method)."""

from __future__ import annotations

import ast
from pathlib import Path

from mempo.runtime import run_folder

ROOT = Path(__file__).resolve().parents[2]
NAMES = {value for name, value in vars(run_folder).items() if name.isupper()}
UNMISTAKABLE = {name for name in NAMES if "." in name or "_" in name}


def written_out(path: Path) -> list[str]:
    """Texts that are one of the names, and joins of a path with one (``folder / "model"``)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        texts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            texts, names = [node.left, node.right], NAMES
        elif isinstance(node, ast.Constant):
            texts, names = [node], UNMISTAKABLE
        for text in texts:
            if isinstance(text, ast.Constant) and text.value in names:
                found.append(f"{path.relative_to(ROOT)}, line {text.lineno}: {text.value!r}")
    return found


def test_every_name_stands_in_one_place() -> None:
    assert {"metrics.jsonl", "trajectories.jsonl", "evaluation.json", "model"} <= NAMES
    files = [*ROOT.glob("mempo/**/*.py"), *ROOT.glob("callbacks/*.py"), *ROOT.glob("*.py")]
    elsewhere = [
        place
        for path in files
        if path != ROOT / "mempo" / "runtime" / "run_folder.py"
        for place in written_out(path)
    ]
    assert elsewhere == []
