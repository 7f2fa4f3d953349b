"""Every collective of a run stands in docs/collectives.md (around the method)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "collectives.md"
SOURCES = ("mempo", "callbacks", "train.py", "evaluate.py")

QUESTIONS = {"is_available", "is_initialized", "get_rank", "get_world_size"}
"""Of ``torch.distributed``, what asks nobody."""

FUNCTIONS = {
    *("gather_objects", "gather_to_main", "of_first", "whole_weights"),  # the project's own
    *("fully_shard", "distribute_tensor", "clip_grad_norm_"),
    *("named_weights", "named_adapters"),
    *("passes_on_every_rank", "batches_on_every_rank"),  # given to what knows no processes
    *("model", "token_logprobs"),  # a pass gathers a sharded model's layers
}
METHODS = {
    *("barrier", "broadcast", "all_gather", "all_reduce", "reduce", "reduce_boolean_decision"),
    *("full_tensor", "manual_backward", "save_checkpoint", "compute", "from_leader"),
    *("collective_rpc", "sync_weights", "weights", "model"),
}
KEYWORDS = {"sync_dist"}


def collectives_in(source: str) -> dict[str, set[str]]:
    """The names of the collectives that each function calls itself, by its qualified name."""
    found: dict[str, set[str]] = defaultdict(set)
    for place, node in _calls(ast.parse(source), ""):
        name, receiver = "", ""
        if isinstance(node.func, ast.Attribute):
            name, receiver = node.func.attr, ast.unparse(node.func.value)
        elif isinstance(node.func, ast.Name):
            name = node.func.id
        of_torch = receiver in ("dist", "torch.distributed") and name not in QUESTIONS
        if of_torch or name in FUNCTIONS or (receiver and name in METHODS):
            found[place].add(name)
        found[place] |= {one.arg for one in node.keywords if one.arg in KEYWORDS}
    return {place: names for place, names in found.items() if names}


def _calls(node: ast.AST, place: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{place}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call):
            yield place, child
        yield from _calls(child, inner)


def found() -> dict[tuple[str, str], set[str]]:
    """Of the whole project, by file and function."""
    files = [file for name in SOURCES for file in _files(ROOT / name)]
    return {
        (str(file.relative_to(ROOT)), place): names
        for file in files
        for place, names in collectives_in(file.read_text(encoding="utf-8")).items()
    }


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def listed() -> list[tuple[tuple[str, str], set[str]]]:
    """The lines of the page's tables."""
    rows = re.findall(
        r"^\| `([\w./]+\.py)` \| `([\w.]+)` \| (`[^|]+`) \| \S[^|]* \|$",
        PAGE.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    return [((file, place), set(re.findall(r"`(\w+)`", calls))) for file, place, calls in rows]


def test_every_collective_is_listed() -> None:
    in_code, on_page = found(), listed()
    assert len(in_code) > 40
    assert len(dict(on_page)) == len(on_page)  # each place once
    assert dict(on_page) == in_code


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("dist.all_reduce(x)", "all_reduce"),
        ("torch.distributed.barrier()", "barrier"),
        ("dist.scatter(x)", "scatter"),
        ("self.trainer.strategy.barrier()", "barrier"),
        ("trainer.strategy.reduce(x)", "reduce"),
        ("trainer.strategy.broadcast(x)", "broadcast"),
        ("self.all_gather(x)", "all_gather"),
        ("self.log('a', x, sync_dist=True)", "sync_dist"),
        ("gather_objects(1)", "gather_objects"),
        ("self.group.from_leader(x)", "from_leader"),
        ("[w.full_tensor() for w in x]", "full_tensor"),
        ("self.model(x)", "model"),
    ],
)
def test_a_new_one_would_be_noticed(call: str, name: str) -> None:
    source = f"class A:\n    def step(self, x):\n        if x:\n            return {call}\n"
    assert collectives_in(source) == {"A.step": {name}}


def test_questions_and_tensors_of_ones_own_are_none() -> None:
    source = "def f(x):\n    dist.get_rank()\n    dist.is_initialized()\n    x.gather(0, x)\n"
    assert collectives_in(source) == {}


def test_torch_distributed_has_one_name() -> None:
    """``dist``, or its own: the test above knows no other."""
    for file in (file for name in SOURCES for file in _files(ROOT / name)):
        text = file.read_text(encoding="utf-8")
        assert not re.search(
            r"from torch import distributed|torch\.distributed as (?!dist\b)", text
        )
        assert not re.search(r"from torch\.distributed import (?!fsdp|tensor)", text), file
