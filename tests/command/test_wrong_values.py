"""Every setting of ``conf/`` is given wrong values of five kinds, and each is refused in a sentence
that names the setting (around the method)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from mempo.command.cli import command_line, compose, compose_tree
from mempo.command.plan import make_plan
from mempo.command.preflight import check_paths
from mempo.config.loading import load_config
from mempo.row_files.rows import DataError, parse_object
from mempo.runtime.errors import ConfigError

KINDS: Mapping[str, tuple[Any, ...]] = {
    "type": ("banana", [1, 2], {"a": 1}, True, 0.5),
    "range": (-1, 0, 4294967296),
    "empty": ("", " ", None, []),
    "large": (10**20, 1e308, float("inf"), float("nan")),
    "path": ("/no/such/path",),
}
BASE = cast(dict[str, Any], OmegaConf.to_container(compose_tree("train"), resolve=True))


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


SETTINGS = dict(leaves(BASE))


def check(setting: str, value: Any) -> None:
    """What the command line does before anything is imported or written."""
    tree = deepcopy(BASE)
    *sections, last = setting.split(".")
    node: Any = tree
    for section in sections:
        node = node[section]
    node[last] = value
    config = load_config(tree)
    check_paths(config)
    make_plan(config, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_value_is_a_sentence_or_a_right_value(kind: str) -> None:
    assert len(SETTINGS) > 180
    unnamed: list[tuple[str, str]] = []
    for setting in SETTINGS:
        for value in KINDS[kind]:
            try:
                check(setting, value)
            except (ConfigError, DataError) as error:
                unnamed += (
                    [] if setting.rpartition(".")[2] in str(error) else [(setting, str(error))]
                )
    assert unnamed == []


def test_what_is_surely_wrong_is_refused() -> None:
    """A value of another kind, an empty text, a number that nobody means."""
    passed = set()
    for setting, default in SETTINGS.items():
        if default is None or isinstance(default, (list, dict)):
            continue
        wrong: list[Any] = [[{"a": [1]}], ""]
        if isinstance(default, (bool, int, float)):
            wrong += ["banana", "/no/such/path", 1e308, 10**20, float("nan")]
        if not isinstance(default, bool) and isinstance(default, (int, float)):
            wrong += [True, -7]
        for value in wrong:
            try:
                check(setting, value)
            except (ConfigError, DataError):
                continue
            passed.add((setting, str(value)))
    assert passed == {("scoring.filler", ""), ("model.system_prompt", "")}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=4294967296", "seed=4294967296: a seed is a whole number from 0 to 4294967295"),
        ("trainer.devices=0", "trainer.devices=0: give the number of processes, at least 1"),
        ("sft.steps=true", "sft.steps=True: the setting is a number, and true and false are none"),
        ("sft.enabled=1", "sft.enabled=1: the setting is a switch: write true or false"),
        ("model.path=''", "model.path='': it is empty: give a value, or null"),
        ("optimizer.learning_rate=1e300", r"larger than 1e\+09"),
        ("optimizer.betas=[0.9,1.5]", r"optimizer.betas=\[0.9, 1.5\]: both lie in \[0, 1\)"),
        ("model.architecture.num_attention_heads=7", "must be a multiple of .*attention_heads=7"),
    ],
)
def test_some_of_the_sentences(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose("train", [override])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ question }} {% if %}", r"line 1: Expected an expression"),
        ("{{ question }} {{ nothing }}", "'nothing' is undefined"),
        ("{{ question.a.b }} {{ question }}", "has no attribute 'a'"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_told_before_anything_else(
    text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(text)
    config = compose("train", [f"model.prompt_template={file}"])
    with pytest.raises(ConfigError, match=words):
        check_paths(config)


def test_a_number_of_thousands_of_digits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:3: the line is not JSON .*4300 digits"):
        parse_object(b'{"id": ' + b"9" * 5000 + b"}", "rows.jsonl:3")
    monkeypatch.setattr("sys.argv", ["train.py", "seed=" + "9" * 5000])
    with pytest.raises(SystemExit), command_line("train"):
        pass
    assert "error: seed: a number of thousands of digits" in capsys.readouterr().err
