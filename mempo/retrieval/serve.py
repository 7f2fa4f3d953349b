"""A retrieval server over a local corpus, so that many machines share one index.

    python -m mempo.retrieval.serve --corpus corpus.jsonl [--index corpus.bm25s] [--port 8000]

It speaks both protocols of ``mempo.retrieval.protocols``: ``return_scores`` chooses. ``GET
/health`` has status 503 while the corpus loads and 200 from then on; searches meanwhile get 503,
after which a client tries again. A faulty request has status 400 and a sentence under "error", one
that the server fails at 500, and its log holds the traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mempo.config import RetrieverConfig, require_path
from mempo.retrieval import protocols
from mempo.retrieval.base import Retriever
from mempo.retrieval.index_files import MOST_TITLE_WEIGHT
from mempo.retrieval.listening import listen
from mempo.retrieval.registry import build_retriever
from mempo.runtime.friendly_errors import friendly_errors
from mempo.runtime.program import command

_LOG = logging.getLogger(__name__)

MOST_QUERIES: Final = 10_000
MOST_RESULTS: Final = 1_000
_DEFAULT_RESULTS: Final = 3  # as Search-R1's server


class _FaultyRequestError(Exception):
    """The request does not fit the protocol."""


class RetrievalServer:
    """The ASGI application, and the retriever that it gets once ``load`` has returned.

    ``load`` runs in a thread of its own from ``start`` on; ``ready`` is set after it. What it
    raised stands in ``error``.
    """

    def __init__(self, load: Callable[[], Retriever]) -> None:
        self._load = load
        self._retriever: Retriever | None = None
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self.app = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/retrieve", self._retrieve, methods=["POST"]),
                Route("/access", self._access, methods=["POST"]),
            ]
        )

    def start(self, then: Callable[[], None]) -> None:
        """Loads in the background; ``then`` is called when that has ended, well or not."""

        def run() -> None:
            try:
                self._retriever = self._load()
                self.ready.set()
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                self.error = error
            then()

        threading.Thread(target=run, name="load-corpus", daemon=True).start()

    async def _health(self, request: Request) -> Response:
        if self._retriever is None:
            return _loading()
        return _json({"status": "ready"})

    async def _retrieve(self, request: Request) -> Response:
        retriever = self._retriever
        if retriever is None:
            return _loading()

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            queries = _texts(body, "queries")
            top_k = _top_k(body)
            found = [retriever.search(query, top_k) for query in queries]
            return protocols.write_passages(found, bool(body.get("return_scores", False)))

        return await _answered(request, answer)

    async def _access(self, request: Request) -> Response:
        retriever = self._retriever
        if retriever is None:
            return _loading()

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            keys = _texts(body, "urls")
            return protocols.write_pages(keys, [retriever.open_page(key) for key in keys])

        return await _answered(request, answer)


async def _answered(
    request: Request, answer: Callable[[dict[str, Any]], dict[str, Any]]
) -> Response:
    """Reads the body and answers on a worker thread, so that requests do not wait in a line."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        return Response(status_code=400)
    try:
        return await run_in_threadpool(lambda: _json(answer(_body(raw))))
    except _FaultyRequestError as error:
        return _json({"error": str(error)}, status=400)
    except Exception:  # noqa: BLE001 - uvicorn would close the connection under the next request
        _LOG.exception("%s could not be answered", request.url.path)
        return _json({"error": "the server failed; its log says how"}, status=500)


def _json(value: Any, status: int = 200) -> Response:
    """In ASCII, which holds lone surrogates too."""
    return Response(json.dumps(value), status, media_type="application/json")


def _loading() -> Response:
    return _json({"status": "loading"}, status=503)


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise _FaultyRequestError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise _FaultyRequestError("the body is no JSON object")
    return body


def _texts(body: dict[str, Any], name: str) -> list[str]:
    texts = body.get(name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _FaultyRequestError(f'"{name}" must be a list of texts')
    if len(texts) > MOST_QUERIES:
        raise _FaultyRequestError(f'"{name}" has more than {MOST_QUERIES} entries')
    return texts


def _top_k(body: dict[str, Any]) -> int:
    value = body.get("topk")
    if value is None:
        return _DEFAULT_RESULTS
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RESULTS:
        raise _FaultyRequestError(f'"topk" must be a whole number from 1 to {MOST_RESULTS}')
    return value


def serve(corpus: str, index: str | None, host: str, port: int, title_weight: int) -> None:
    """Serves until the process is told to end. Raises what loading raised, and ``MempoError``
    when the port is taken."""
    path = require_path(corpus, "--corpus")
    config = RetrieverConfig(
        kind="rank_bm25" if index is None else "bm25s", index=index, title_weight=title_weight
    )
    listening, address = listen(host, port)
    server = RetrievalServer(lambda: build_retriever(config, path))
    web = uvicorn.Server(uvicorn.Config(server.app, log_level="warning"))

    def loaded() -> None:
        if server.error is None:
            _say(f"ready: {corpus} at {address}")
        else:
            web.should_exit = True

    _say(f"loading {corpus}")
    server.start(loaded)
    with suppress(KeyboardInterrupt):  # uvicorn ends in order, and then raises it again
        web.run(sockets=[listening])
    if server.error is not None:
        raise server.error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@friendly_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=command("serve", "mempo.retrieval.serve"),
        description="Serves search and pages over a corpus, for retriever=http. It trusts whoever "
        "can reach it: keep it inside your network.",
    )
    parser.add_argument("--corpus", required=True, help="JSON lines, as data.corpus")
    parser.add_argument(
        "--index",
        help=f"its index ({command('index', 'mempo.retrieval.build')}); without: all in memory",
    )
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: other machines too")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--title-weight", type=int, default=1, help="as retriever.title_weight")
    given = parser.parse_args(arguments)
    if not 1 <= given.title_weight <= MOST_TITLE_WEIGHT:
        parser.error(f"--title-weight must be from 1 to {MOST_TITLE_WEIGHT}")
    if not 0 <= given.port <= 65535:
        parser.error("--port must be from 0 (any free one) to 65535")
    for name in ("corpus", "index", "host"):
        if getattr(given, name) is not None and not getattr(given, name).strip():
            parser.error(f"--{name} is empty: give one, or leave it out")
    serve(given.corpus, given.index, given.host, given.port, given.title_weight)


if __name__ == "__main__":
    main()
