"""The page's document: everything in one file, its script and style named by their digests.

Nothing of the agent stands in it: the script asks for that, with the token where there is one, and
puts texts of models and tools into text nodes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mempo.inspect.document import page_part

_FOLDER: Final = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Document:
    """The text and its headers."""

    text: str
    headers: Mapping[str, str]

    @classmethod
    def made(cls) -> Document:
        """The page's own parts after the inspector's."""
        style = page_part("page.css") + _part("ask.css")
        scripts = [page_part("text.js"), _part("card.js"), _part("ask.js")]
        script = "(() => {\n'use strict';\n" + "\n".join(scripts) + "})();\n"
        policy = (
            f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        text = _part("ask.html").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
        return cls(
            text,
            {
                "Content-Security-Policy": policy,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-store",
            },
        )


def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
