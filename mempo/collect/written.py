"""A trajectory as a row of ``sft.path``: chat messages (docs/cold_start.md)."""

from __future__ import annotations

from typing import Any

from mempo.collect.selection import Record


def chat_row(record: Record, share: float, teacher: str) -> dict[str, Any]:
    """The question as the user's turn, rounds as the assistant's, observations as the tool's, in
    their ``<information>`` tags. Instructions are the reader's own and stand in no row."""
    messages = [{"role": "user", "content": record["question"]}]
    for one in record["rounds"]:
        messages.append({"role": "assistant", "content": one["text"]})
        if one["observation"] is not None:
            messages.append({"role": "tool", "content": one["observation"]})
    return {
        "messages": messages,
        "question": record["question"],
        "task": record["task"],
        "source": record["source"],
        "teacher": teacher,
        "attempt": record["sample"],
        "metrics": record["metrics"],
        "reward": record["reward"],
        "right_share": share,
    }
