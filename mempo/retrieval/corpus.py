"""Reading corpora, in the forms of specification section 11 and those that people have.

A file holds one JSON object a line, a list of them, or a table (``.tsv``, ``.csv``) whose first
line names the columns, and may be packed as ``.gz``. Read are these rows:

- ``{"id", "contents"}``: the first line of ``contents`` is the title, perhaps in double quotes;
  contents of one line have no title (Anserini)
- ``{"id", "title", "text"}``, BEIR's with ``_id``, DPR's as a table; ``passage`` may hold a text
  for search that differs from the page's
- ``{"_id", "wikipedia_title", "text": [paragraph, …]}`` (KILT), whose first paragraph is the title

``url`` is kept where there is one. A document without title is opened by its id, and one without id
is named after its place in the file; both are told.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mempo.retrieval.base import Document
from mempo.row_files.endings import TABLES, ending, is_packed, stem
from mempo.row_files.rows import DataError, Row, UniqueIds, parse_object, plain_line, seen
from mempo.row_files.rows_of import file_rows
from mempo.row_files.tables import column_names, table_row
from mempo.row_files.told import Told

NO_TITLE: Final = "of the corpus have no title: their pages are opened by id"
NO_ID: Final = "of the corpus have no id: they are named after their place in the file"
LEFT_OUT: Final = "of the corpus cannot be read and were left out (data.skip_bad_rows)"
"""What is told of such rows."""

_IDS: Final = ("id", "_id", "docid")


def read_corpus(
    path: str | Path, skip_bad_rows: bool = False, told: Told | None = None
) -> list[Document]:
    """The documents of a corpus, in file order.

    Raises ``DataError`` that names file, line and remedy: a line that is blank (but at the end) or
    not JSON, a missing or blank field, an id used twice, an empty file; ``skip_bad_rows`` leaves
    such rows out. ``told`` takes down what is left out or guessed; without it that is printed.
    """
    path, counted = Path(path), Told()
    documents, ids = [], UniqueIds("document")
    for row in file_rows(path):
        try:
            if isinstance(row, DataError):
                raise row
            document = parse_document(row, counted)
            ids.claim(document.id, row)
        except DataError as error:
            if not skip_bad_rows:
                raise
            counted.add(LEFT_OUT, str(error))
            continue
        documents.append(document)
    if not documents:
        bad = counted.count(LEFT_OUT)
        reason = f"none of its {bad} rows can be used" if bad else "it holds no passages"
        raise DataError(f"{path}: {reason}: give a file with id and contents in each row")
    tell(counted, told)
    return documents


def tell(counted: Told, told: Told | None) -> None:
    """Hands on what a corpus told, or prints it where nobody takes it."""
    if told is not None:
        told.update(counted)
        return
    for sentence in counted.sentences():
        print(sentence, file=sys.stderr, flush=True)


def document_of_line(line: bytes, corpus: Path, number: int, told: Told | None = None) -> Document:
    """The document on a line of the corpus; ``number`` counts passages from 1, which are the lines
    after the first in a table, and else all. Raises ``DataError``."""
    delimiter = TABLES.get(ending(corpus))
    fields: Mapping[str, Any]
    if delimiter is None:
        place = f"{corpus}:{number}"
        fields = parse_object(plain_line(line, number), place)
    else:
        place = f"{corpus}:{number + 1}"
        fields = table_row(
            plain_line(line, number + 1), _columns(corpus, delimiter), place, delimiter
        )
    return parse_document(Row(fields, place, f"{stem(corpus)}-{number}"), told)


def first_passage(corpus: Path) -> int:
    """The byte where the first passage begins, in a corpus of which an index reads single lines.

    Raises ``DataError`` for a packed file and a JSON list, whose passages are no lines.
    """
    _columns.cache_clear()
    with corpus.open("rb") as file:
        first = file.readline()
    packed = is_packed(corpus)
    remedy = "a packed file: unpack it" if packed else "a list: write one object on every line"
    if packed or plain_line(first, 1).lstrip()[:1] == b"[":
        raise DataError(
            f"{corpus}: an index reads its passages from single lines of the corpus, and this is "
            f"{remedy}, or use retriever=rank_bm25"
        )
    return len(first) if ending(corpus) in TABLES else 0


@lru_cache(maxsize=8)
def _columns(corpus: Path, delimiter: str) -> list[str]:
    """The columns of a table, kept since every passage of an index asks for them."""
    with corpus.open("rb") as file:
        line = plain_line(file.readline(), 1)
    (cells,) = csv.reader([line.decode("utf-8", "replace")], delimiter=delimiter)
    return column_names(cells, f"{corpus}:1")


def parse_document(row: Row, told: Told | None = None) -> Document:
    """One row of a corpus. Raises ``DataError`` with file and line in front."""
    key = row.identifier(*_IDS)
    if told is not None and row.first(*_IDS) is None:
        told.add(NO_ID, row.place)
    if "contents" in row.fields:
        title, _, text = row.text("contents").partition("\n")
        title, text = (_unquoted(title), text.strip()) if text else ("", title)
        document = Document(key, title, text, row.optional_text("url"))
    else:
        document = _titled(row, key)
    if told is not None and not document.title:
        told.add(NO_TITLE, row.place)
    return document


def _titled(row: Row, key: str) -> Document:
    """A row with title and text in fields of their own."""
    name = "wikipedia_title" if "wikipedia_title" in row.fields else "title"
    if row.first(name, "text") is None:
        raise row.fault('give the field "contents", or the fields "title" and "text"')
    value = row.fields.get(name)
    blank = name in row.fields and (value is None or (isinstance(value, str) and not value.strip()))
    title = "" if blank else row.text(name)
    paragraphs = row.fields.get("text")
    text = _joined(row, paragraphs, title) if isinstance(paragraphs, list) else row.text("text")
    passage = row.text("passage") if row.first("passage") else None
    return Document(key, title, text, row.optional_text("url"), passage)


def _joined(row: Row, paragraphs: list[Any], title: str) -> str:
    """A text of paragraphs (KILT), without the title in front."""
    if not all(isinstance(one, str) for one in paragraphs):
        raise row.fault(f'the field "text" must hold texts, it is {seen(paragraphs)}')
    kept = [one.strip() for one in paragraphs if one.strip()]
    if len(kept) > 1 and kept[0] == title:
        kept = kept[1:]
    if not kept:
        raise row.fault('the field "text" is blank')
    return "\n".join(kept)


def _unquoted(title: str) -> str:
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1].strip()
    return title
