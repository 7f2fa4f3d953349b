"""Reading corpora: JSON lines in the two forms of specification section 11.

- ``{"id", "contents"}``: the first line of ``contents`` is the title, perhaps in double quotes
- ``{"id", "title", "text", "url"}``: ``url`` may be left out, and ``passage`` may hold a text for
  search that differs from the page's
"""

from __future__ import annotations

from pathlib import Path

from mempo.retrieval.base import Document
from mempo.runtime.rows import DataError, Row, UniqueIds, line_rows, parse_object, plain_line


def read_corpus(path: str | Path) -> list[Document]:
    """The documents of a JSON-lines corpus, in file order.

    Raises ``DataError`` that names file, line and remedy: a line that is blank or not JSON, a
    missing or blank field, an id used twice, an empty file.
    """
    documents, ids = [], UniqueIds("document")
    for row in line_rows(Path(path)):
        if isinstance(row, DataError):
            raise row
        document = parse_document(row)
        ids.claim(document.id, row)
        documents.append(document)
    return documents


def document_of_line(line: bytes, corpus: Path, number: int) -> Document:
    """The document on a line of the corpus; ``number`` is counted from 1. Raises ``DataError``."""
    place = f"{corpus}:{number}"
    return parse_document(Row(parse_object(plain_line(line, number), place), place))


def parse_document(row: Row) -> Document:
    """One row of a corpus. Raises ``DataError`` with file and line in front."""
    if row.first("id") is None:
        raise row.fault('the field "id" is missing: add it')
    key = row.identifier("id")
    if "contents" in row.fields:
        title, _, text = row.text("contents").partition("\n")
        title = _unquoted(title)
        if not title or not text.strip():
            raise row.fault('"contents" must hold a title on its first line and text after it')
        return Document(key, title, text.strip())
    if row.first("title", "text") is None:
        raise row.fault('give the field "contents", or the fields "title" and "text"')
    passage = row.text("passage") if row.first("passage") else None
    return Document(key, row.text("title"), row.text("text"), row.optional_text("url"), passage)


def _unquoted(title: str) -> str:
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1].strip()
    return title
