"""The docs say what the configuration says, and name what there is (around the method)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mempo.command.cli import compose_tree
from mempo.runtime.nested import leaves

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SECTIONS = ("reward", "scoring", "outcome", "memory", "loss", "rollout")


def as_written(value: Any) -> str:
    """A value as the docs write it: YAML words, line breaks escaped."""
    words = {True: "true", False: "false", None: "null"}
    if value is None or isinstance(value, bool):
        return words[value]
    return str(value).replace("\n", "\\n")


def test_every_switch_stands_in_the_docs_with_its_default() -> None:
    # A model without overrides of its own: the defaults of the method.
    config = compose_tree("train", ["model=pretrained"])
    expected: dict[str, str] = {}
    for section in SECTIONS:
        node = OmegaConf.to_container(config[section], resolve=False)
        assert isinstance(node, dict)
        found = leaves(node, section)
        expected.update({name: as_written(value) for name, value in found.items()})
    text = (ROOT / "docs" / "switches.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| `(.+?)` \|", text, flags=re.MULTILINE)
    assert dict(rows) == expected
    assert len(rows) == len(expected)


def test_every_setting_of_the_retriever_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8")
    named = re.findall(r"`retriever\.([a-z_]+)`", text) + re.findall(r"`([a-z_]+_chars)`", text)
    assert set(compose_tree("train").retriever) == set(named)
    rows = re.findall(r"^\| `retriever\.([a-z_]+)` \| `?([^ `|]+)`? ", text, flags=re.MULTILINE)
    config = compose_tree("train", ["model=pretrained"]).retriever
    for name, value in rows:
        default = config[name]
        assert value == (f"{default:g}" if isinstance(default, float) else as_written(default))


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_every_file_and_module_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = "mempo|callbacks|conf|tests|scripts|benchmarks|docs"
    files = re.findall(rf"(?<![\w./<-])((?:{folders})/(?:[\w./-]*\w)?)", text)
    known = [name for name in files if any(ROOT.glob(name)) or any(ROOT.glob(f"{name}.py"))]
    assert files == known
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    modules = [ROOT / name.replace(".", "/") for name in re.findall(r"-m (mempo[.\w]*)", text)]
    assert [
        path
        for path in modules
        if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file()
    ] == []


def test_the_whole_history_is_not_called_react() -> None:
    """``full`` writes memories, which are prefilled and which rule 8 demands: no ReAct agent."""
    (evaluation,) = (page for page in PAGES if page.name == "evaluation.md")
    (row,) = re.findall(r"^\| `full` \| (.+) \|$", evaluation.read_text("utf-8"), re.MULTILINE)
    assert "still writes memories, and they are prefilled" in row
    assert "it is not a ReAct agent" in row
    assert compose_tree("evaluate").evaluation.prefill_memory
    told = [page.read_text("utf-8") for page in (*PAGES, *(ROOT / "conf").rglob("*.yaml"))]
    assert not any(re.search(r"full[^.|]{0,40}\(?plain ReAct", text) for text in told)


def test_the_table_of_rooms_is_complete() -> None:
    rooms = re.findall(r"`mempo/(\w+)(?:/|\.py)?`", PAGES[0].read_text(encoding="utf-8"))
    inside = {path.name.removesuffix(".py") for path in (ROOT / "mempo").iterdir()}
    assert set(rooms) == inside - {"__init__", "__pycache__", "py.typed"}


def test_every_test_file_says_which_sections_it_holds_to() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(words.split("\n\n")[0].split())
        assert re.search(r"sections? \d|around the method", first), path
