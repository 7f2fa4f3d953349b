"""Lists and objects that a program wrote into a text: as JSON, as Python, or as numpy prints them.

Nothing is evaluated: ``json``, and ``ast.literal_eval``, which reads literals only. numpy puts no
commas (``['a' 'b']``), which Python would read as the one text ``ab``: its elements are read one
by one.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

_TEXT: Final = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_ITEM: Final = rf"(?:np\.str_\({_TEXT}\)|{_TEXT}|-?\d+(?:\.\d+)?)"
_ITEMS: Final = re.compile(rf"\s*{_ITEM}(?:(?:\s*,\s*|\s+){_ITEM})*\s*,?\s*", re.DOTALL)
_NUMPY: Final = re.compile(r"(?:np\.|numpy\.)?array\((?P<list>\[.*\])(?:,\s*dtype=[^()]*)?\)", re.S)
_OPENING: Final = re.compile(r"""(?:\[|(?:np\.|numpy\.)?array\(\s*\[)\s*(?:["'{\[]|np\.str_\()""")

_OBJECT: Final = re.compile(r"""\{\s*["']""")


class UnreadableText(ValueError):
    """A text that begins as a written list or object and cannot be read as one."""


def written_list(text: str) -> list[Any] | None:
    """The elements of a list written in ``text``; ``None`` for a text that is none.

    A list begins with a bracket and a quote (``["``, ``['``, ``array(['``), holds numbers among
    its texts perhaps, or is empty; a tuple or set of texts counts. ``[A]``, ``[a] tag`` and
    ``[0, 1)`` are texts. Raises ``UnreadableText`` for what begins as a list and cannot be read to
    its end, and for a list of numbers alone, which may as well be an interval.
    """
    plain = text.strip()
    if plain[:1] not in ("[", "(", "{", "a", "n"):
        return None
    array = _NUMPY.fullmatch(plain)
    body = array["list"] if array else plain
    found = _json(body)
    if not isinstance(found, list) and body[:1] + body[-1:] in ("[]", "()", "{}"):
        found = _literals(body)
    if isinstance(found, list):
        if found and all(type(one) in (int, float) for one in found):
            raise UnreadableText("is a list of numbers, or an interval")
        return found
    if _OBJECT.match(plain):
        raise UnreadableText("is an object written as a text")
    if _OPENING.match(plain):
        raise UnreadableText("looks like a list but is not JSON or Python")
    return None


def written_object(text: str) -> Any:
    """The list or object written in a text that begins with ``{`` or ``[``, as JSON or Python.

    Raises ``UnreadableText`` where it cannot be read.
    """
    found = _json(text)
    if found is None:
        try:
            found = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found = None
    if not isinstance(found, (list, dict)):
        raise UnreadableText("looks like a list or an object but is not JSON or Python")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _literals(body: str) -> list[Any] | None:
    """The elements of a list in Python's or numpy's form. A text in parentheses is a tuple only
    with a comma, and braces hold a set."""
    inner = body[1:-1]
    if not _ITEMS.fullmatch(inner):
        return None
    items = re.findall(_ITEM, inner, re.DOTALL)
    if body[0] != "[" and (
        not all(item[0] in "\"'" for item in items) or (body[0] == "(" and "," not in inner)
    ):
        return None
    try:
        return [
            ast.literal_eval(re.sub(r"^np\.str_\((.*)\)$", r"\1", i, flags=re.S)) for i in items
        ]
    except (ValueError, SyntaxError):
        return None
