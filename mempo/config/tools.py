"""The agent's tools (``conf/tools/``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from mempo.config.strict import STRICT

TAKEN_TAGS: Final = ("mem", "think", "answer", "information")
"""What the rest of a round is written in."""
_TAG: Final = re.compile(r"[a-z][a-z0-9_-]*")
_PASSAGE_TOOLS: Final = ("mempo.agent.tools.Search", "mempo.agent.tools.Access")


@dataclass(frozen=True, config=STRICT)
class ToolConfig:
    """One tool (specification section 3; docs/extending.md).

    ``_target_`` is a class or function by import path, and ``arguments`` are its own.
    ``argument`` and ``description`` are what the instructions say of it; a tool without a
    description (``None``) is not named there. ``timeout_s`` bounds a call, in seconds; above the
    share ``max_error_rate`` of failed calls the run stops. An observation has at most ``max_chars``
    characters, and later rounds see the first ``short_chars`` of it (``None``: all).
    """

    _target_: str
    tag: str
    description: str | None
    argument: str = "the input"
    timeout_s: float | None = Field(default=None, gt=0)
    max_error_rate: float | None = Field(default=None, ge=0.0, le=1.0)
    max_chars: int | None = Field(default=None, ge=1)
    short_chars: int | None = Field(default=None, ge=1)
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def over_passages(self) -> bool:
        """Whether it is one of the two tools over the run's passages."""
        return self._target_ in _PASSAGE_TOOLS

    @property
    def is_access(self) -> bool:
        """Whether it opens the run's pages, which have their own short text."""
        return self._target_ == _PASSAGE_TOOLS[1]

    @model_validator(mode="after")
    def _check(self) -> ToolConfig:
        if not _TAG.fullmatch(self.tag):
            raise ValueError(
                f'tag "{self.tag}": a tag is a lower-case letter, then letters, digits, - and _'
            )
        if self.tag in TAKEN_TAGS:
            raise ValueError(
                f'tag "{self.tag}": rounds are written in {", ".join(TAKEN_TAGS)}: choose another'
            )
        for name in ("max_chars", "short_chars", "arguments"):
            if self.over_passages and getattr(self, name):
                raise ValueError(
                    f"{name} is not read by {self._target_}: retriever.passage_chars, "
                    "retriever.page_chars and retriever.short_chars are"
                )
        return self


SEARCH: Final = ToolConfig(
    "mempo.agent.tools.Search", "search", "to search for passages", "a query"
)
ACCESS: Final = ToolConfig(
    "mempo.agent.tools.Access",
    "access",
    "to read a page; opening it again shows its next part",
    "the title or URL of a page in the results",
)
DEFAULT_TOOLS: Final = (SEARCH, ACCESS)
_BY_NAME: Final = {tool.tag: tool for tool in DEFAULT_TOOLS}


def entries(given: Any) -> Any:
    """A list of entries in which ``search`` and ``access`` stand for those of the default."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return given
    for one in given:
        if isinstance(one, str) and one not in _BY_NAME:
            raise ValueError(
                f'tools: there is no tool "{one}": name search or access, or write an entry with '
                "_target_ and tag"
            )
    return [_BY_NAME[one] if isinstance(one, str) else one for one in given]


def check_together(tools: Sequence[ToolConfig]) -> None:
    """Raises ``ValueError`` for a list that leaves nothing to do, or in which a tag is twice."""
    if not tools:
        raise ValueError("tools is empty: an agent needs one, as in tools=default")
    tags = [tool.tag for tool in tools]
    for tag in tags:
        if tags.count(tag) > 1:
            raise ValueError(f'tools: the tag "{tag}" is there twice: give each tool its own')
