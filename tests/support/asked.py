"""A run folder whose model is a stand-in that searches once and then answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mempo.command.cli import compose_tree
from mempo.config import Config
from mempo.evaluation.models import EvaluatedModel
from tests.support.fakes import AnsweringEngine
from tests.support.small_tokenizers import make_tokenizer

PASSAGES = {"Amber Works": "founder Anna Bel.", "Anna Bel": "birthplace Arnden."}
QUESTION = "Who founded Amber Works?"
ASKED = "<think>Need founder.</think><search>Amber Works</search>"
TOLD = "Amber Works founder Anna Bel.</mem><think>Done.</think><answer>Anna Bel</answer>"


def make_run(
    folder: Path,
    overrides: Sequence[str] = ("experiment=debug",),
    tools: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """A finished run of ``train.py`` with these overrides, and passages beside it. ``tools``: the
    entries of its own tools (``None``: search and access)."""
    make_tokenizer("bytes").save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / ".hydra").mkdir()
    tree = compose_tree("train", overrides)
    if tools is not None:
        OmegaConf.update(tree, "tools", list(tools), merge=False, force_add=True)
    OmegaConf.save(tree, folder / ".hydra" / "config.yaml")
    rows = [{"id": title, "contents": f"{title}\n{text}"} for title, text in PASSAGES.items()]
    passages = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "passages.jsonl").write_text(passages)
    return folder


def search_then_answer(prompt: str) -> str:
    """One search, and the answer from its result."""
    return TOLD if "founder Anna Bel." in prompt else ASKED


def asked_twice(prompt: str) -> str:
    """As many searches as the question's number says."""
    (wanted,) = set(re.findall(r"(\d) searches\?", prompt))
    done = len(re.findall(r"<mem>so far (\d)", prompt)) and int(
        re.findall(r"so far (\d)", prompt)[-1]
    )
    if "<information>" not in prompt:
        return "<think>a</think><search>Amber Works</search>" if wanted != "0" else _answer(0)
    if done + 1 == int(wanted):
        return f"so far {done + 1}</mem>" + _answer(int(wanted))
    return f"so far {done + 1}</mem><think>a</think><search>Anna Bel</search>"


def _answer(number: int) -> str:
    return f"<think>b</think><answer>{number} done</answer>"


class Starts:
    """Starts a stand-in engine for each model and keeps it."""

    def __init__(self, answer: Callable[[str], str] = search_then_answer) -> None:
        self.engines: list[AnsweringEngine] = []
        self._answer = answer

    def __call__(self, model: EvaluatedModel, config: Config) -> AnsweringEngine:
        assert all(engine.closed == 1 for engine in self.engines), "one engine after the other"
        self.engines.append(AnsweringEngine(model.conversation, self._answer))
        return self.engines[-1]


def by_question(prompt: str) -> str:
    """Does what the question says: ``break the engine``, ``use the bug`` (a search that raises),
    ``write <b>markup</b>``, ``say nothing``, some searches, or one."""
    if "break the engine" in prompt:
        raise RuntimeError("the engine broke")
    if "use the bug" in prompt:
        bug = "<think>a</think><search>bug</search>"
        return bug if "<information>" not in prompt else f"m</mem>{_answer(1)}"
    if "write markup" in prompt:
        return (
            f"<think>{MARKUP}</think><search>Amber Works</search>"
            if "<information>" not in prompt
            else f"{MARKUP}</mem><think>b</think><answer>{MARKUP}</answer>"
        )
    if "say nothing" in prompt:
        return "<think>a</think>"
    return asked_twice(prompt) if " searches?" in prompt else search_then_answer(prompt)


def own_tools(prompt: str) -> str:
    """Four calls of ``shout``, then one of the tool that the question names, which raises, then an
    answer; ``say search``: an answer at once, beside a tag that is no tool's."""
    if "say search" in prompt:
        return "<think>a</think>see <search> here <answer>5</answer>"
    named = "kept" if "use kept" in prompt else "fault"
    seen = re.findall(r"<mem>so far (\d)", prompt)
    done = int(seen[-1]) + 1 if seen else int("<information>" in prompt)
    begin = f"so far {done}</mem>" if done else ""
    if done < 4:
        return f"{begin}<think>a</think><shout>ann</shout>"
    return begin + (f"<think>a</think><{named}>raise</{named}>" if done == 4 else _answer(4))


MARKUP = "<b id=mark>bold</b><img src=x onerror=alert(1)>\u202e"
