"""What a tool call gives."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PagePart:
    """The rest of a page, or as much of it as one access may offer.

    ``head`` names the page, ``body`` is its text from character ``start`` on, and ``more`` says
    that the page goes on behind it. How much of ``body`` is shown, the token budget decides
    (``mempo/agent/observations.py``).
    """

    key: tuple[str, str]
    head: str
    body: str
    start: int
    more: bool


@dataclass(frozen=True)
class ToolResult:
    """What a tool call gave.

    ``text`` is the observation before it is cut to its token budget and wrapped; ``short_text``
    is what later rounds see of it. ``failed``: the call found nothing, by the model's own fault.
    ``error``: the cause when the tool itself failed, else ``None``. ``passages`` (number
    and title, text) and ``page``, of which ``text`` is made, say how one too long is to be cut.
    """

    text: str
    short_text: str
    failed: bool = False
    error: str | None = None
    passages: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    page: PagePart | None = field(default=None, compare=False)


def sentence(text: str, failed: bool = False, error: str | None = None) -> ToolResult:
    """A sentence to the model, which later rounds see whole."""
    return ToolResult(text, text, failed, error)


def unreadable(*texts: str) -> str | None:
    """What is wrong with texts that no tokenizer can read, or ``None``."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        return f"not valid text ({error})"
    return None
