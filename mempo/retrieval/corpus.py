"""Reading corpora: JSON lines in the two forms of specification section 11.

- ``{"id", "contents"}``: the first line of ``contents`` is the title, perhaps in double quotes
- ``{"id", "title", "text", "url"}``: ``url`` may be left out, and ``passage`` may hold a text for
  search that differs from the page's
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mempo.retrieval.base import Document
from mempo.runtime.rows import DataError, identifier, numbered_lines, parse_object, required_text


def read_corpus(path: str | Path) -> list[Document]:
    """The documents of a JSON-lines corpus, in file order.

    Raises ``DataError`` that names file, line and remedy: a line that is blank or not JSON, a
    missing or blank field, an id used twice, an empty file.
    """
    path = Path(path)
    documents = []
    first_line: dict[str, int] = {}
    for number, line in numbered_lines(path):
        place = f"{path}:{number}"
        document = parse_document(parse_object(line, place), place)
        if document.id in first_line:
            raise DataError(
                f'{place}: the id "{document.id}" stands already on line '
                f"{first_line[document.id]}: give every document its own"
            )
        first_line[document.id] = number
        documents.append(document)
    return documents


def parse_document(row: Mapping[str, Any], place: str) -> Document:
    """One row of a corpus. Raises ``DataError`` with ``place`` (file and line) in front."""
    key = identifier(row, place)
    if key is None:
        raise DataError(f'{place}: the field "id" is missing: add it')
    if "contents" in row:
        title, _, text = required_text(row, "contents", place).strip().partition("\n")
        title = _unquoted(title)
        if not title or not text.strip():
            raise DataError(
                f'{place}: "contents" must hold a title on its first line and text after it'
            )
        return Document(key, title, text.strip())
    if "title" not in row and "text" not in row:
        raise DataError(f'{place}: give the field "contents", or the fields "title" and "text"')
    return Document(
        key,
        required_text(row, "title", place).strip(),
        required_text(row, "text", place).strip(),
        required_text(row, "url", place).strip() if row.get("url") else "",
        required_text(row, "passage", place).strip() if row.get("passage") is not None else None,
    )


def _unquoted(title: str) -> str:
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1].strip()
    return title
