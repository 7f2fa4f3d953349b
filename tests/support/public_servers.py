"""Retrieval servers as other projects publish them: the shapes of their answers, faults included.

Each is a ``reply`` for ``tests.support.servers.answering``. Their web framework answers 404 with
``{"detail": "Not Found"}`` where it has no such path, and 500 with a plain text where their code
raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tests.support.servers import Reply

Answer = Callable[[str, Any, int], Reply]
Pages = Mapping[str, str] | Literal["missing", "not loaded", "fails", "not enabled"]

NOT_FOUND: Reply = (404, b'{"detail":"Not Found"}')
RAISED: Reply = (500, b"Internal Server Error")

WIKI = {"Tolm": "A town in the hills.", "Bel": "A hill of Tolm."}
"""Texts by title. Their addresses are those of ``address``."""


def address(title: str) -> str:
    return f"https://en.wikipedia.org/wiki/{title}"


def search_engine(*results: tuple[str, str], wrapped: bool = True) -> Answer:
    """Search-R1's servers for SerpAPI and Google: titles and snippets in ``document``, without ids
    and scores, in a number of their own; ``topk`` and ``return_scores`` are not read. Not
    ``wrapped``: a plain list of documents."""
    documents = [{"contents": f'"{title}"\n{snippet}'} for title, snippet in results]
    found = [{"document": one} for one in documents] if wrapped else documents

    def reply(path: str, body: Any, number: int) -> Reply:
        if path != "/retrieve":
            return NOT_FOUND
        return 200, json.dumps({"result": [found for _ in body["queries"]]}).encode()

    return reply


def search_r1(path: str, body: Any, number: int) -> Reply:
    """Search-R1's server over a corpus. Without scores its code unpacks two values where there is
    one, and raises."""
    if path != "/retrieve":
        return NOT_FOUND
    if not body["return_scores"]:
        return RAISED
    found = [
        {"document": {"id": str(i), "contents": f'"{title}"\n{text}'}, "score": 0.75 - i / 4}
        for i, (title, text) in enumerate(WIKI.items())
    ]
    return 200, json.dumps({"result": [found[: body["topk"]] for _ in body["queries"]]}).encode()


def asearcher(pages: Pages) -> Answer:
    """ASearcher's server. With scores its code reads a name that is not there, and raises. Without
    ``pages`` it is one of those that people made of it."""

    def reply(path: str, body: Any, number: int) -> Reply:
        if path == "/access":
            return access(body)
        if body["return_scores"]:
            return RAISED
        found = [
            {"id": str(i), "contents": f'"{title}"\n{text}', "url": address(title)}
            for i, (title, text) in enumerate(WIKI.items())
        ]
        answer = {"result": [found[: body["topk"]] for _ in body["queries"]]}
        return 200, json.dumps(answer).encode()

    def access(body: Any) -> Reply:
        if pages == "missing":
            return NOT_FOUND
        if pages == "fails":
            return RAISED
        if pages == "not enabled":
            return 503, b'{"detail":"Page access is not enabled."}'
        if pages == "not loaded":
            error = {"error": "Page access is not available. Pages file was not loaded."}
            return 200, json.dumps(error).encode()
        known = [
            {"url": url, "contents": pages[url]} if url in pages else None for url in body["urls"]
        ]
        return 200, json.dumps({"result": known}).encode()

    return reply


def asearchers_client(documents: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """What ASearcher's client makes of one query's documents: their texts and addresses."""
    return [one["contents"] for one in documents], [one["url"] for one in documents]
