"""What a judge is told, and how its reply is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import jinja2

from mempo.runtime.errors import ConfigError

DEFAULT_PROMPT: Final = Path(__file__).with_name("judge.txt")

_MARKS: Final = {"question": "Qq1", "golds": "Gg2", "answer": "Aa3"}


class JudgePrompt:
    """A text file with ``{{ question }}``, ``{{ golds }}`` (a list) and ``{{ answer }}``. The
    filter ``quoted`` writes a text or a list as JSON, on one line.

    Raises ``ConfigError`` for a file that is not there or lacks golds or answer.
    """

    def __init__(self, path: str | None = None) -> None:
        file = DEFAULT_PROMPT if path is None else Path(path)
        named = f"reward.judge.prompt={file}"
        try:
            self.text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{named}: the file cannot be read ({error})") from None
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
        environment.filters["quoted"] = _quoted
        try:
            self._template = environment.from_string(self.text)
            shown = self.render(_MARKS["question"], [_MARKS["golds"]], _MARKS["answer"])
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise ConfigError(f"{named}{f', line {line}' if line else ''}: {error}") from None
        for name in ("golds", "answer"):
            if _MARKS[name] not in shown:
                raise ConfigError(f"{named}: the text does not contain {{{{ {name} }}}}")

    def render(self, question: str, golds: list[str], answer: str) -> str:
        """The message for one part of an answer."""
        return self._template.render(question=question, golds=golds, answer=answer)


def read_verdict(reply: str) -> bool | None:
    """The last ``yes`` or ``no`` of a reply, thoughts before ``</think>`` left out; ``None``
    without one."""
    said = re.findall(r"\b(yes|no)\b", reply.rpartition("</think>")[2].lower())
    return said[-1] == "yes" if said else None


def _quoted(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)
