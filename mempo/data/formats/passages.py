"""Passages that data sets carry with their questions, made into a corpus (section 11)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mempo.retrieval.base import Document, Passage
from mempo.row_files.rows import Row, require_text, seen
from mempo.row_files.told import Told


def titled_passages(row: Row, name: str, text_fields: Sequence[str], told: Told) -> list[Passage]:
    """The passages in the field ``name``; none where the row has no such field.

    Read are a list of ``[title, sentences]`` pairs, a list of objects with ``title`` and one of
    ``text_fields``, one object with a list of titles and a list of texts beside it, and any of
    these written as JSON text. A text is a text or a list of sentences. Passages without text are
    left out, which ``told`` takes down. Raises ``DataError`` for any other shape and for a
    blank title.
    """
    value = _parsed(row, name)
    if value is None:
        return []
    found = [_passage(row, name, pair) for pair in _pairs(row, name, value, text_fields)]
    kept = [passage for passage in found if passage.text]
    if len(kept) < len(found):
        told.add("hold passages without text, which were left out", row.place)
    return kept


def marked_titles(row: Row, name: str, mark: str) -> list[str]:
    """The titles of the passages in the field ``name`` that hold true under ``mark``: objects, or
    one object of lists, or either as JSON text. Raises ``DataError`` for any other shape."""
    value = _parsed(row, name)
    if isinstance(value, Mapping):
        titles, marks = value.get("title"), value.get(mark)
        if marks is None:
            return []
        if isinstance(titles, list) and isinstance(marks, list) and len(titles) == len(marks):
            value = [{"title": one, mark: two} for one, two in zip(titles, marks, strict=True)]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise row.fault(f'the field "{name}" must hold passages, it is {seen(value)}')
    found = [one.get("title") for one in value if one.get(mark) is True]
    if not all(isinstance(title, str) and title.strip() for title in found):
        raise row.fault(f'a passage in "{name}" with "{mark}" must have a title')
    return [str(title).strip() for title in found]


def named_titles(row: Row, name: str) -> list[str]:
    """The titles in the field ``name``: a list of them, a list of lists that each begin with one
    (``[title, sentence number]``), one object with a list in ``title``, or any of these as JSON
    text. Raises ``DataError`` for any other shape."""
    value = _parsed(row, name)
    titles = value.get("title") if isinstance(value, Mapping) else value
    if isinstance(titles, list):
        found = [one[0] if isinstance(one, list) and one else one for one in titles]
        if all(isinstance(one, str) and one.strip() for one in found):
            return [one.strip() for one in found]
    raise row.fault(
        f'the field "{name}" must hold titles, or pairs of a title and a number; it is '
        f"{seen(value)}"
    )


def documents(passages: Iterable[Passage], join_titles: bool = False) -> list[Document]:
    """The corpus: each different passage once, numbered in the order of first sight.

    ``join_titles`` makes one document of all passages with one title: a line for each different
    text, and the first one's URL.
    """
    different = dict.fromkeys(passages)
    if join_titles:
        pages: dict[str, list[Passage]] = {}
        for passage in different:
            pages.setdefault(passage.title, []).append(passage)
        different = dict.fromkeys(
            Passage(title, "\n".join(dict.fromkeys(one.text for one in page)), page[0].url)
            for title, page in pages.items()
        )
    return [
        Document(str(number), passage.title, passage.text, passage.url)
        for number, passage in enumerate(different)
    ]


def _parsed(row: Row, name: str) -> Any:
    """The field ``name``; what it says where it is JSON text."""
    value = row.fields.get(name)
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise row.fault(f'the field "{name}" is a text but not JSON: {seen(value)}') from None
    require_text({name: found}, row.place)
    return found


def _pairs(row: Row, name: str, value: Any, text_fields: Sequence[str]) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        texts = next((value[field] for field in text_fields if field in value), None)
        titles = value.get("title")
        if isinstance(titles, list) and isinstance(texts, list) and len(titles) == len(texts):
            return list(zip(titles, texts, strict=True))
    elif isinstance(value, list):
        pairs = [_pair(one, text_fields) for one in value]
        if all(pair is not None for pair in pairs):
            return [pair for pair in pairs if pair is not None]
    wanted = " or ".join(f'"{field}"' for field in text_fields)
    raise row.fault(
        f'the field "{name}" must hold pairs of a title and sentences, or "title" with {wanted}; '
        f"it is {seen(value)}"
    )


def _pair(one: Any, text_fields: Sequence[str]) -> tuple[Any, Any] | None:
    if isinstance(one, list) and len(one) == 2:
        return one[0], one[1]
    if isinstance(one, Mapping) and "title" in one:
        for field in text_fields:
            if field in one:
                return one["title"], one[field]
    return None


def _passage(row: Row, name: str, pair: tuple[Any, Any]) -> Passage:
    title, text = pair
    sentences = text if isinstance(text, list) else [text]
    if not isinstance(title, str) or not title.strip():
        raise row.fault(f'a passage in "{name}" must have a title, it has {seen(title)}')
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise row.fault(
            f'the passage "{title}" in "{name}" must hold text or sentences, it has {seen(text)}'
        )
    return Passage(title.strip(), " ".join(" ".join(sentences).split()))
