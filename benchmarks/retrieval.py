"""The index on disk: building it, searching it, and against the corpus in memory.

    python benchmarks/retrieval.py --passages 1000000
    python benchmarks/retrieval.py --passages 5000000 --queries 500
    python benchmarks/retrieval.py --passages 20000 --against-memory

The corpus is generated: passages of about ``--words`` words whose frequencies fall as in natural
text (Zipf's law with exponent 1 over ``--vocabulary`` words), under titles of two words. Queries
are three to eight words drawn from one passage. Building and serving run in processes of their own,
so that each one's peak memory is its own.

Prints one JSON line, last: ``build_seconds``, ``build_peak_gib``, ``query_ms_median`` and
``query_ms_p95`` (``--queries`` searches for 5 passages, one after the other, after 100 that warm
up), ``serve_resident_gib`` (of the serving process after them; ``serve_private_gib`` without pages
of files, which the system's cache shares), ``index_gib``; with ``--against-memory`` also
``speedup`` (queries a second over the package rank_bm25, whose ``BM25Okapi`` scores every passage,
the same queries), ``speedup_memory`` (over ``retriever=rank_bm25``, which makes an inverted index
of the package's statistics) and ``same_top5`` (the share of queries with the same five scores in
all three, to 1e-5 relative); with ``--server-seconds`` the figures of
``mempo.retrieval.serve`` under ``--clients`` clients for so long: ``server_answers``,
``server_errors`` (anything but the passages that a search in this process finds), and
milliseconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import numpy as np
from rank_bm25 import BM25Okapi

from benchmarks.common import machine
from mempo.retrieval.base import Document
from mempo.retrieval.bm25s import Bm25sRetriever
from mempo.retrieval.build import build_index
from mempo.retrieval.corpus import document_of_line
from mempo.retrieval.rank_bm25 import RankBm25Retriever, words

T = TypeVar("T")
WARM_UP = 100
TOP_K = 5
_BLOCK = 10_000
_KIB = 1024


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        corpus, index = Path(folder) / "corpus.jsonl", Path(folder) / "corpus.bm25s"
        print(f"writing {options.passages:,} passages", file=sys.stderr, flush=True)
        queries = write_corpus(corpus, options)
        figures: dict[str, Any] = {"corpus_gib": corpus.stat().st_size / 2**30}
        figures |= in_a_process(build, corpus, index)
        figures["index_gib"] = sum(f.stat().st_size for f in index.rglob("*")) / 2**30
        figures |= in_a_process(serve, corpus, index, queries)
        if options.against_memory:
            figures |= against_memory(corpus, index, queries)
        if options.server_seconds:
            figures |= under_load(corpus, index, queries, options)
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}
    for name, value in rounded.items():
        print(f"{name:22} {value}")
    arguments = {k: v for k, v in vars(options).items() if k != "folder"}
    line = {"benchmark": "retrieval", **rounded, "arguments": arguments, "machine": machine()}
    print(json.dumps(line), flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--passages", type=int, default=20_000, help="of the corpus")
    parser.add_argument("--words", type=int, default=100, help="of a passage, about")
    parser.add_argument("--vocabulary", type=int, default=1_000_000, help="different words")
    parser.add_argument("--queries", type=int, default=1000, help="timed searches")
    parser.add_argument("--against-memory", action="store_true", help="compare with rank_bm25")
    parser.add_argument("--server-seconds", type=float, default=0.0, help="of load on a server")
    parser.add_argument("--clients", type=int, default=64, help="of the server, at once")
    parser.add_argument("--folder", help="where the temporary files go")
    parser.add_argument("--seed", type=int, default=0, help="of corpus and queries")
    return parser.parse_args(argv)


def write_corpus(path: Path, options: argparse.Namespace) -> list[str]:
    """Writes the corpus; the queries."""
    rng = np.random.default_rng(options.seed)
    words = np.array([_word(number) for number in range(options.vocabulary)])
    cumulative = np.cumsum(1.0 / np.arange(1, options.vocabulary + 1))
    picker = random.Random(options.seed)
    total = options.queries + WARM_UP
    asked = set(picker.sample(range(options.passages), min(total, options.passages)))
    queries: list[str] = []
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, options.passages, _BLOCK):
            count = min(_BLOCK, options.passages - first)
            lengths = rng.integers(options.words // 2, options.words * 3 // 2 + 1, count)
            draws = rng.random(int(lengths.sum())) * cumulative[-1]
            chosen = words[np.searchsorted(cumulative, draws)]
            for offset, text in enumerate(np.split(chosen, np.cumsum(lengths)[:-1])):
                number = first + offset
                title = f"{_word(number % 7919)} {_word(number)}"
                contents = f"{title}\n{' '.join(text)}"
                file.write(json.dumps({"id": str(number), "contents": contents}) + "\n")
                if number in asked:
                    drawn = picker.sample(list(text), picker.randint(3, 8))
                    queries.append(" ".join(map(str, drawn)))
    picker.shuffle(queries)
    return [queries[i % len(queries)] for i in range(total)]


def _word(number: int) -> str:
    """A word of its own for each number, shorter for smaller ones."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = letters[rest] + text
    return text


def in_a_process(work: Callable[..., T], *arguments: Any) -> T:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(work, *arguments).result()


def build(corpus: Path, index: Path) -> dict[str, float]:
    start = time.perf_counter()
    build_index(corpus, index, show_progress=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return {"build_seconds": time.perf_counter() - start, "build_peak_gib": peak / 2**30}


def serve(corpus: Path, index: Path, queries: Sequence[str]) -> dict[str, float]:
    """Searches one after the other; milliseconds, and what the process holds at the end."""
    retriever = Bm25sRetriever(corpus, index)
    seconds = timed(retriever, queries)
    status = {
        name: int(value.split()[0]) * _KIB / 2**30
        for line in Path("/proc/self/status").read_text().splitlines()
        for name, _, value in [line.partition(":")]
        if name in ("VmRSS", "RssAnon")
    }
    return {
        "query_ms_median": 1000 * statistics.median(seconds),
        "query_ms_p95": 1000 * statistics.quantiles(seconds, n=20)[-1],
        "query_ms_most": 1000 * max(seconds),
        "serve_resident_gib": status["VmRSS"],
        "serve_private_gib": status["RssAnon"],
    }


def timed(retriever: Any, queries: Sequence[str]) -> list[float]:
    seconds = []
    for query in queries:
        start = time.perf_counter()
        retriever.search(query, TOP_K)
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def against_memory(corpus: Path, index: Path, queries: Sequence[str]) -> dict[str, float]:
    """The three on the same queries, each one query after the other, after some that warm up."""
    everything = list(documents(corpus))
    on_disk, in_memory = Bm25sRetriever(corpus, index), RankBm25Retriever(everything)
    package = BM25Okapi([words(one.title) + words(one.search_text) for one in everything])

    def packaged(query: str) -> list[float]:
        scores = package.get_scores(words(query))
        best = np.argpartition(-scores, TOP_K)[:TOP_K]
        return sorted(scores[best].tolist(), reverse=True)

    def searched(retriever: Any) -> Callable[[str], list[float]]:
        return lambda query: [one.score for one in retriever.search(query, TOP_K)]

    sides = {"disk": searched(on_disk), "memory": searched(in_memory), "package": packaged}
    seconds, found = {}, {}
    chosen = queries[:200]
    for name, side in sides.items():
        for query in chosen[:20]:
            side(query)
        start = time.perf_counter()
        scores = [side(query) for query in chosen]
        seconds[name] = time.perf_counter() - start
        # Only the package gives passages without any of the words, with a score of 0.
        found[name] = [np.array([one for one in best if one > 0]) for best in scores]
    same = sum(
        all(
            found[name][place].shape == expected.shape
            and np.allclose(found[name][place], expected, rtol=1e-5, atol=0)
            for name in ("disk", "memory")
        )
        for place, expected in enumerate(found["package"])
    )
    return {
        "speedup": seconds["package"] / seconds["disk"],
        "speedup_memory": seconds["memory"] / seconds["disk"],
        "disk_queries_per_second": len(chosen) / seconds["disk"],
        "same_top5": same / len(chosen),
    }


def under_load(
    corpus: Path, index: Path, queries: Sequence[str], options: argparse.Namespace
) -> dict[str, float]:
    """A server in a process of its own, and clients that ask as fast as they are answered."""
    retriever = Bm25sRetriever(corpus, index)
    chosen = queries[:200]
    expected = [[one.id for one in retriever.search(query, TOP_K)] for query in chosen]
    port = _free_port()
    command = [sys.executable, "-m", "mempo.retrieval.serve", "--corpus", str(corpus)]
    command += ["--index", str(index), "--port", str(port)]
    root = Path(__file__).resolve().parent.parent
    server = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while not _is_ready(url):
            time.sleep(0.2)
        end = time.perf_counter() + options.server_seconds

        def client(number: int) -> list[tuple[float, bool]]:
            answers: list[tuple[float, bool]] = []
            with httpx.Client(timeout=60) as session:
                for place in itertools.count(number):
                    start = time.perf_counter()
                    if start >= end:
                        return answers
                    asked = place % len(chosen)
                    body = {"queries": [chosen[asked]], "topk": TOP_K, "return_scores": False}
                    try:
                        answer = session.post(f"{url}/retrieve", json=body)
                        found = [one["id"] for one in answer.json()["result"][0]]
                    except (httpx.HTTPError, ValueError, KeyError, IndexError):
                        found = None
                    answers.append((time.perf_counter() - start, found == expected[asked]))
            return answers

        with ThreadPoolExecutor(options.clients) as executor:
            answers = [one for part in executor.map(client, range(options.clients)) for one in part]
    finally:
        server.terminate()
        server.wait()
    seconds = [took for took, _ in answers]
    return {
        "server_answers": len(answers),
        "server_errors": sum(not right for _, right in answers),
        "server_ms_median": 1000 * statistics.median(seconds),
        "server_ms_p95": 1000 * statistics.quantiles(seconds, n=20)[-1],
        "server_ms_most": 1000 * max(seconds),
    }


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def documents(corpus: Path) -> Iterator[Document]:
    with corpus.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield document_of_line(line, corpus, number)


if __name__ == "__main__":
    main()
