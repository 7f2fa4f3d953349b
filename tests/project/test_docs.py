"""The docs say what the configuration says (around the method)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mempo.command.cli import compose_tree
from mempo.runtime.nested import leaves

ROOT = Path(__file__).resolve().parents[2]
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
