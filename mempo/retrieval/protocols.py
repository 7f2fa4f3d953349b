"""The two protocols of retrieval servers, as plain values (specification section 11).

    Search-R1   POST /retrieve {"queries", "topk", "return_scores": true}
                → {"result": [[{"document": {"id", "contents"}, "score"}]]}
    ASearcher   POST /retrieve {"queries", "topk", "return_scores": false}
                → {"result": [[{"id", "contents", "url"}]]}
                POST /access {"urls"} → {"result": [{"url", "contents"} or null]}

``contents`` holds the title on its first line, perhaps in double quotes. Search-R1's servers that
ask a search engine give documents without ``score`` and ``id``, or plain documents, whatever
``return_scores`` says; ASearcher's documents always have ``url``. The client reads with
``read_passages`` and ``read_pages``, the server writes with ``write_passages`` and ``write_pages``;
neither knows of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mempo.retrieval.base import Page, Passage

Protocol = Literal["search_r1", "asearcher"]

OTHER: dict[Protocol, Protocol] = {"search_r1": "asearcher", "asearcher": "search_r1"}


class ShapeError(ValueError):
    """An answer that is not what the protocol says; the message tells what was expected."""


class NoPagesError(ValueError):
    """The server says that it has no pages."""


def retrieve_request(queries: Sequence[str], top_k: int, protocol: Protocol) -> dict[str, Any]:
    """The body of ``POST /retrieve``."""
    return {
        "queries": list(queries),
        "topk": top_k,
        "return_scores": protocol == "search_r1",
    }


def access_request(keys: Sequence[str]) -> dict[str, Any]:
    """The body of ``POST /access``."""
    return {"urls": list(keys)}


def read_passages(answer: Any, queries: int, protocol: Protocol) -> tuple[list[list[Passage]], int]:
    """The answer of ``/retrieve`` as passages, one list for each of ``queries``, and how many blank
    ones were left out.

    Raises ``ShapeError``, which says so when the answer is the other protocol's, and when there are
    none but blank results.
    """
    read = [
        [_passage(entry, protocol) for entry in _list(found, 'each entry of "result"')]
        for found in _result(answer, queries)
    ]
    passages = [[one for one in found if one is not None] for found in read]
    blank = sum(map(len, read)) - sum(map(len, passages))
    if blank and not any(passages):
        raise ShapeError('the "contents" of every result are blank')
    return passages, blank


def read_pages(answer: Any, keys: Sequence[str]) -> list[Page | None]:
    """The answer of ``/access`` as pages, ``None`` where the server knows none.

    A page whose contents begin with a title in double quotes has that title, else its key.
    Raises ``ShapeError``, and ``NoPagesError`` for ``{"error"}`` in the place of a result.
    """
    if isinstance(answer, dict) and "result" not in answer and isinstance(answer.get("error"), str):
        raise NoPagesError(answer["error"])
    return [
        None if entry is None else _page(entry, key)
        for entry, key in zip(_result(answer, len(keys)), keys, strict=True)
    ]


def write_passages(found: Sequence[Sequence[Passage]], return_scores: bool) -> dict[str, Any]:
    """The answer of ``/retrieve``: Search-R1's with scores, ASearcher's without.

    ASearcher's client needs a ``url`` of every document: where there is none it is the title, by
    which ``/access`` finds the page too.
    """
    documents = [[_document(passage) for passage in passages] for passages in found]
    if not return_scores:
        return {
            "result": [
                [
                    document | {"url": passage.url or passage.title or passage.id}
                    for document, passage in zip(line, passages, strict=True)
                ]
                for line, passages in zip(documents, found, strict=True)
            ]
        }
    return {
        "result": [
            [
                {"document": document, "score": passage.score}
                for document, passage in zip(line, passages, strict=True)
            ]
            for line, passages in zip(documents, found, strict=True)
        ]
    }


def write_pages(keys: Sequence[str], pages: Sequence[Page | None]) -> dict[str, Any]:
    """The answer of ``/access``."""
    return {
        "result": [
            None
            if page is None
            else {"url": page.url or key, "contents": _contents(page.title, page.text)}
            for key, page in zip(keys, pages, strict=True)
        ]
    }


def _document(passage: Passage) -> dict[str, str]:
    document = {"id": passage.id, "contents": _contents(passage.title, passage.text)}
    return document | ({"url": passage.url} if passage.url else {})


def _contents(title: str, text: str) -> str:
    """Always with quotes, so that a title's own ones come through."""
    return f'"{" ".join(title.split())}"\n{text}'


def _result(answer: Any, count: int) -> list[Any]:
    if not isinstance(answer, dict) or "result" not in answer:
        raise ShapeError('there is no object with "result"')
    result = _list(answer["result"], '"result"')
    if len(result) != count:
        raise ShapeError(f'"result" has {len(result)} entries for {count} requests')
    return result


def _passage(entry: Any, protocol: Protocol) -> Passage | None:
    """One result; ``None`` where it is blank."""
    is_wrapped = isinstance(entry, dict) and "document" in entry
    is_plain = isinstance(entry, dict) and "contents" in entry and not is_wrapped
    is_asearchers = is_plain and "url" in entry
    if is_wrapped if protocol == "asearcher" else is_asearchers:
        raise ShapeError(
            f"it is the other protocol's answer; set retriever.protocol={OTHER[protocol]}"
        )
    score = None
    if is_wrapped:
        entry, score = entry["document"], entry.get("score")
        if isinstance(score, bool) or not isinstance(score, (int, float, type(None))):
            raise ShapeError('a result has no number as its "score"')
    if not isinstance(entry, dict) or not isinstance(entry.get("contents"), str):
        raise ShapeError('a result has no text "contents"')
    title, text = _split(entry["contents"])
    if not title and not text:
        return None
    url, name = _text(entry, "url"), _text(entry, "id")
    if " ".join(url.split()) in (title, name) and "://" not in url:
        url = ""  # a server's name for a document that has none
    return Passage(title, text, url, name, score)


def _page(entry: Any, key: str) -> Page | None:
    """One page; ``None`` where it is blank with an ``error``, as some servers say "not found"."""
    if not isinstance(entry, dict) or not isinstance(entry.get("contents"), str):
        raise ShapeError('a page has no text "contents"')
    contents = entry["contents"].strip()
    if not contents:
        if entry.get("error"):
            return None
        raise ShapeError('the "contents" of a page are blank')
    url = _text(entry, "url")
    if _quoted(contents.partition("\n")[0].strip()):
        title, text = _split(contents)
        return Page(title or key, text, url)
    return Page(key, contents, url)


def _split(contents: str) -> tuple[str, str]:
    title, _, text = contents.strip().partition("\n")
    title = title.strip()
    return (title[1:-1].strip() if _quoted(title) else title), text.strip()


def _quoted(title: str) -> bool:
    return len(title) > 1 and title[0] == title[-1] == '"'


def _text(entry: dict[str, Any], name: str) -> str:
    """An optional field; ids may be numbers."""
    value = entry.get(name)
    return "" if value is None else str(value)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ShapeError(f"{name} is not a list")
    return value
