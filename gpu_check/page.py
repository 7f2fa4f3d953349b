"""What was found, as one page to attach to a report."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_check.running import Outcome

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .4rem .6rem;
border-bottom: 1px solid #ddd; vertical-align: top } pre { white-space: pre-wrap; font-size: 12px }
.passed { color: #176b2c } .failed { color: #b00020; font-weight: 600 } .out { color: #777 }
"""


def page(machine: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """A self-contained HTML document."""
    about = "".join(f"<tr><th>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in machine.items())
    rows = "".join(map(_row, outcomes))
    return (
        f"<!doctype html><meta charset=utf-8><title>mempo gpu-check</title><style>{_STYLE}</style>"
        f"<h1>{_text(verdict(outcomes))}</h1><table>{rows}</table>"
        f"<h2>Machine</h2><table>{about}</table>\n"
    )


def verdict(outcomes: Sequence[Outcome]) -> str:
    """One line for all of them."""
    states = [one.state for one in outcomes]
    failed = [one.name for one in outcomes if one.state == "failed"]
    left = states.count("left out")
    good = f"{states.count('passed')} passed, {states.count('told')} told, {left} left out"
    return f"{len(failed)} failed: {', '.join(failed)} ({good})" if failed else good


def _row(one: Outcome) -> str:
    name = "out" if one.state == "left out" else one.state
    figure = "" if one.figure is None else f"{one.figure:.4g}"
    limit = "" if one.limit is None or not figure else f" (limit {one.limit:g})"
    said = f"<pre>{_text(one.said)}</pre>" if one.said else ""
    also = "".join(f"<br>{_text(name)} {_text(shown(value))}" for name, value in one.also.items())
    remedy = f"<p>{_text(one.remedy)}</p>" if one.remedy else ""
    return (
        f"<tr><td class={name}>{_text(one.state)}</td><td><b>{_text(one.name)}</b><br>"
        f"{_text(one.shows)}{said}{remedy}<pre>{_text(one.command)}</pre></td>"
        f"<td>{figure}{limit}{also}</td><td>{one.seconds:g} s</td></tr>"
    )


def shown(value: Any) -> str:
    """A figure that is not judged."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(value: Any) -> str:
    return html.escape(str(value))
