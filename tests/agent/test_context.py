"""The context at evaluation (specification section 9)."""

from __future__ import annotations

from typing import Any

import pytest

from mempo.agent.context import AgentMemory, KeepSteps
from tests.support.cases_path import load_cases


def build(records: list[dict[str, Any]]) -> AgentMemory:
    """A memory filled with a case's records."""
    memory = AgentMemory()
    for record in records:
        if record["type"] == "prompt":
            memory.add_prompt(record["text"])
        elif record["type"] == "llm_gen":
            memory.add_generation(record["text"])
        else:
            memory.add_result(record["type"], record["text"], record["short_text"])
    return memory


@pytest.mark.parametrize("case", load_cases("evaluation_context.json"))
def test_cases(case: dict[str, Any]) -> None:
    memory = build(case["records"])
    assert case["messages"]
    for setting, expected in case["messages"].items():
        options = dict(part.split("=") for part in setting.split(","))
        keep = options["keep_steps"]
        keep_steps: KeepSteps = "all" if keep == "all" else int(keep)
        assert memory.messages(newest=options["newest"], keep_steps=keep_steps) == expected


def conversation(rounds: int) -> AgentMemory:
    memory = AgentMemory("system")
    memory.add_prompt("Q?")
    for n in range(1, rounds + 1):
        memory.add_generation(f"<mem>m{n}</mem><access>p{n}</access>")
        memory.add_result("access", f"long {n}", f"short {n}")
    return memory


def contents(memory: AgentMemory, **options: Any) -> list[str]:
    return [message["content"] for message in memory.messages(**options)]


def test_newest_result_whole_older_ones_short() -> None:
    memory = conversation(3)
    g = [f"<mem>m{n}</mem><access>p{n}</access>" for n in (1, 2, 3)]
    assert contents(memory) == ["system", "Q?", g[2], "long 3"]
    assert contents(memory, keep_steps=2) == ["system", "Q?", g[1], "short 2", g[2], "long 3"]
    assert contents(memory, newest="short") == ["system", "Q?", g[2], "short 3"]
    everything = ["system", "Q?", g[0], "short 1", g[1], "short 2", g[2], "long 3"]
    assert contents(memory, keep_steps="all") == everything
    assert contents(memory, keep_steps=3) == everything
    assert contents(memory, keep_steps=99) == everything


def test_results_are_counted_not_rounds() -> None:
    """A generation without a result belongs to the step of the result that follows it."""
    memory = conversation(2)
    memory.add_generation("<mem>m3</mem><think>no action</think>")
    assert memory.kept_records(1) == [0, 3, 4, 5]
    assert memory.shown_text(4) == "long 2"
    memory.add_result("feedback", "one fixed sentence")
    assert memory.kept_records(1) == [0, 5, 6]
    assert memory.shown_text(4) == "short 2"


def test_kept_records_name_the_same_records_as_messages() -> None:
    memory = conversation(4)
    for keep_steps in (1, 2, 3, "all"):
        kept = memory.kept_records(keep_steps)
        shown = memory.messages(keep_steps=keep_steps)[1:]
        assert [memory.records[i].role for i in kept] == [m["role"] for m in shown]
        assert [memory.shown_text(i) for i in kept] == [m["content"] for m in shown]


def test_result_without_short_text_stays_whole() -> None:
    memory = AgentMemory()
    memory.add_prompt("Q?")
    memory.add_result("search", "passages")
    memory.add_result("search", "more")
    assert contents(memory, keep_steps="all")[2:] == ["passages", "more"]


def test_empty_short_text_is_kept() -> None:
    memory = AgentMemory()
    memory.add_prompt("Q?")
    memory.add_result("access", "page", "")
    assert contents(memory, newest="short")[-1] == ""


@pytest.mark.parametrize("text", ["<mem>a</mem>", "<mem><mem>a</mem>", "<mem>\n<mem><mem>a</mem>"])
def test_prefilled_memory_tag_stands_once(text: str) -> None:
    memory = AgentMemory()
    memory.add_prompt("Q?")
    memory.add_generation(text + "<think>b</think>")
    assert memory.records[1].text == "<mem>a</mem><think>b</think>"
    assert contents(memory)[-1].count("<mem>") == 1


@pytest.mark.parametrize(
    "text", [" \n<think>t</think>\n", "a <mem><mem>b</mem>", "<mem>a<mem>b</mem>", "é\u00a0", ""]
)
def test_skyrl_438_generations_are_shown_exactly_as_written(text: str) -> None:
    memory = AgentMemory()
    memory.add_prompt("Q?")
    memory.add_generation(text)
    memory.add_result("search", "r")
    assert contents(memory)[2] == text


def test_messages_are_fresh_every_time() -> None:
    memory = conversation(1)
    memory.messages()[0]["content"] = "changed"
    assert contents(memory)[0] == "system"


def test_misuse_is_an_error() -> None:
    memory = AgentMemory()
    for call in (lambda: memory.add_generation("a"), lambda: memory.add_result("search", "r")):
        with pytest.raises(ValueError, match="add_prompt first"):
            call()
    with pytest.raises(ValueError, match="add_prompt first"):
        memory.messages()
    memory.add_prompt("Q?")
    with pytest.raises(ValueError, match="exactly one"):
        memory.add_prompt("Q?")
    with pytest.raises(ValueError, match="keep_steps=0"):
        memory.messages(keep_steps=0)
    with pytest.raises(ValueError, match="newest='long'"):
        memory.messages(newest="long")  # type: ignore[arg-type]
