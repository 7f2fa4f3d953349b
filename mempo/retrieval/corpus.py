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
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mempo.retrieval.base import Document
from mempo.row_files.endings import TABLES, ending, is_packed, stem
from mempo.row_files.json_documents import begins_document
from mempo.row_files.rows import (
    DataError,
    Row,
    UniqueIds,
    numbered_lines,
    parse_object,
    plain_line,
    seen,
)
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
    counted = Told()
    documents = list(documents_of(Path(path), skip_bad_rows, counted))
    tell(counted, told)
    return documents


def documents_of(path: Path, skip_bad_rows: bool, told: Told) -> Iterator[Document]:
    """The documents of ``read_corpus``, one after another."""
    ids, any_read = UniqueIds("document"), False
    for row in file_rows(path):
        try:
            if isinstance(row, DataError):
                raise row
            document = parse_document(row, told)
            ids.claim(document.id, row)
        except DataError as error:
            if not skip_bad_rows:
                raise
            told.add(LEFT_OUT, str(error))
            continue
        yield document
        any_read = True
    if not any_read:
        bad = told.count(LEFT_OUT)
        reason = f"none of its {bad} rows can be used" if bad else "it holds no passages"
        raise DataError(f"{path}: {reason}: give a file with id and contents in each row")


def tell(counted: Told, told: Told | None) -> None:
    """Hands on what a corpus told, or prints it where nobody takes it."""
    if told is not None:
        told.update(counted)
        return
    for sentence in counted.sentences():
        print(sentence, file=sys.stderr, flush=True)


def document_of_line(
    line: bytes, corpus: Path, number: int, told: Told | None = None, left_out: int = 0
) -> Document:
    """The document on a line of the corpus; ``number`` counts passages from 1, and ``left_out`` the
    lines before it that are none, a table's first not among them. Raises ``DataError``."""
    delimiter = TABLES.get(ending(corpus))
    at = number + left_out + (delimiter is not None)
    place = f"{corpus}:{at}"
    fields: Mapping[str, Any]
    if delimiter is None:
        fields = parse_object(plain_line(line, at), place)
    else:
        fields = table_row(plain_line(line, at), _columns(corpus, delimiter), place, delimiter)
    return parse_document(Row(fields, place, f"{stem(corpus)}-{number}"), told)


def has_lines(corpus: Path) -> bool:
    """Whether each passage stands on a line of its own: not in a packed file or a JSON document."""
    if is_packed(corpus) or ending(corpus) in TABLES:
        return not is_packed(corpus)
    first = next((plain_line(*one[::-1]) for one in numbered_lines(corpus) if one[1].strip()), b"")
    return not begins_document(first.lstrip(), ending(corpus) == ".json")


def first_passage(lines: Path) -> int:
    """The byte where the first passage begins, behind the first line of a table."""
    _columns.cache_clear()
    if ending(lines) not in TABLES:
        return 0
    with lines.open("rb") as file:
        return len(file.readline())


def line_number(lines: Path, position: int) -> int:
    """The line, counted from 1, that begins at byte ``position``."""
    number = 1
    with lines.open("rb") as file:
        while position > 0 and (block := file.read(min(position, 1 << 24))):
            number += block.count(b"\n")
            position -= len(block)
    return number


def write_passages(documents: Iterable[Document], path: Path) -> None:
    """Writes a corpus of one JSON object a line, in one step."""
    temporary = path.with_suffix(".writing")
    with temporary.open("w", encoding="utf-8") as file:
        for one in documents:
            fields = {"id": one.id, "title": one.title, "text": one.text, "url": one.url}
            if one.passage is not None:
                fields["passage"] = one.passage
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    temporary.replace(path)


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
