"""The client and the server of retrieval, over real connections (specification section 11)."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Never

import httpx
import pytest

from mempo.agent.error_rate import ErrorRate, ToolFailureError
from mempo.agent.tools import SEARCH_FAILED, SEARCH_TIMED_OUT, ToolBox
from mempo.command.cli import compose
from mempo.config import RetrieverConfig
from mempo.data.tasks import load_task_sets
from mempo.retrieval import (
    Bm25sRetriever,
    Document,
    HttpRetriever,
    IndexFileError,
    Page,
    RankBm25Retriever,
    RetrievalError,
    build_retriever,
)
from mempo.retrieval.build import build_index
from mempo.retrieval.http import ServerError
from mempo.retrieval.serve import main as serve_main
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Objective, Task
from tests.support.pages import known_page
from tests.support.servers import Reply, answering, free_port, our_server, silent_server

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS = ("search_r1", "asearcher")

DOCUMENTS = [
    Document("a", "Upper Tolm", "A town in the hills.\nIt has a mayor.", "http://x/Tolm"),
    Document("b", '"Q"', "A play about the hills.", "http://x/Q"),
    Document("c", "Bel", "A hill. Ünïcode ☃, \ud800 and <tags>.", "http://x/Bel"),
    Document("d", "No link", "The mayor lives here.", passage="The mayor."),
    Document("e", "No link", "The second piece of this page."),
]


def client(url: str, **settings: Any) -> HttpRetriever:
    quick = {"read_timeout_s": 5.0, "timeout_s": 10.0, "backoff_s": 0.01, "ready_timeout_s": 20.0}
    return HttpRetriever(RetrieverConfig(kind="http", url=url, **(quick | settings)))


@pytest.fixture(scope="module")
def local() -> RankBm25Retriever:
    return RankBm25Retriever(DOCUMENTS)


@pytest.fixture(scope="module")
def url(local: RankBm25Retriever) -> Iterator[str]:
    with our_server(lambda: local) as address:
        client(address).wait_until_ready()
        yield address


def write_corpus(path: Path) -> Path:
    rows = [
        {"id": d.id, "title": d.title, "text": d.text, "url": d.url, "passage": d.search_text}
        for d in DOCUMENTS
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines.replace("\\ud800", ""))  # a corpus holds whole characters only
    return path


# Our server and our client together


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_both_protocols_give_what_the_local_retriever_gives(
    url: str, local: RankBm25Retriever, protocol: str
) -> None:
    remote = client(url, protocol=protocol)
    queries = ["hills", "the mayor", "a hill", "tags ☃", "nothing at all like it", "\ud800 town"]
    for query in queries:
        found, wanted = remote.search(query, 3), local.search(query, 3)
        assert found == wanted
        scores = [passage.score for passage in wanted]
        assert [p.score for p in found] == (scores if protocol == "search_r1" else [None] * 3)[
            : len(found)
        ]
    assert remote.search_many(queries, 2) == [local.search(query, 2) for query in queries]
    assert remote.search_many([], 2) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("key", ["upper tolm", "http://x/Tolm", '"Q"', "Bel", " No link "])
def test_pages_come_whole_through_both_protocols(
    url: str, local: RankBm25Retriever, protocol: str, key: str
) -> None:
    page, wanted = known_page(client(url, protocol=protocol), key), known_page(local, key)
    assert (page.title, page.text) == (wanted.title, wanted.text)
    assert page.url == (wanted.url or key)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("key", ["Nowhere", "http://x/nowhere", "hills"])
def test_a_page_that_the_server_does_not_know(url: str, protocol: str, key: str) -> None:
    assert client(url, protocol=protocol).open_page(key) is None


def test_what_stands_on_the_wire(url: str) -> None:
    body = {"queries": ["second piece"], "topk": 1}
    document = {"id": "e", "contents": '"No link"\nThe second piece of this page.'}
    plain = httpx.post(f"{url}/retrieve", json=body).json()
    assert plain == {"result": [[document | {"url": "No link"}]]}
    scored = httpx.post(f"{url}/retrieve", json=body | {"return_scores": True}).json()
    ((found,),) = scored["result"]
    assert found["document"] == document
    assert found["score"] > 0
    opened = httpx.post(f"{url}/access", json={"urls": ["http://x/Q", "nowhere"]}).json()
    page = {"url": "http://x/Q", "contents": '""Q""\nA play about the hills.'}
    assert opened == {"result": [page, None]}
    assert httpx.get(f"{url}/health").json() == {"status": "ready"}
    three = httpx.post(f"{url}/retrieve", json={"queries": ["a the mayor"]}).json()
    assert len(three["result"][0]) == 3  # as Search-R1's server without "topk"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/retrieve", b"{oops", "not JSON"),
        ("/retrieve", b"[1]", "no JSON object"),
        ("/retrieve", b"\xff", "not JSON"),
        ("/retrieve", b"{}", '"queries" must be a list'),
        ("/retrieve", b'{"queries": "one"}', '"queries" must be a list'),
        ("/retrieve", b'{"queries": [1]}', '"queries" must be a list'),
        ("/retrieve", b'{"queries": ["a"], "topk": 0}', '"topk" must be'),
        ("/retrieve", b'{"queries": ["a"], "topk": 1001}', '"topk" must be'),
        ("/retrieve", b'{"queries": ["a"], "topk": true}', '"topk" must be'),
        ("/access", b'{"urls": null}', '"urls" must be a list'),
    ],
)
def test_a_faulty_request_is_told_what_is_wrong(
    url: str, path: str, body: bytes, words: str
) -> None:
    response = httpx.post(url + path, content=body)
    assert response.status_code == 400
    assert words in response.json()["error"]


def test_64_clients_lose_no_answer(url: str, local: RankBm25Retriever) -> None:
    remote = client(url, workers=64, read_timeout_s=10.0)
    queries = [DOCUMENTS[i % 5].title + " hills" for i in range(320)]
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda query: remote.search(query, 5), queries))
    assert found == [local.search(query, 5) for query in queries]


def test_a_bug_in_a_retriever_is_an_error_for_the_client() -> None:
    class Broken:
        def search(self, query: str, top_k: int) -> Never:
            raise ZeroDivisionError("a bug")

        def open_page(self, key: str) -> Never:
            raise ZeroDivisionError("a bug")

    with (
        our_server(Broken) as address,
        pytest.raises(ServerError, match=r"status 500.*tried 2 times"),
    ):
        client(address, retries=1).search("x", 1)

    with our_server(Broken) as address, httpx.Client(base_url=address) as session:
        for _ in range(3):
            answer = session.post("/retrieve", json={"queries": ["x"]})
            assert (answer.status_code, list(answer.json())) == (500, ["error"])
            assert answer.headers.get("connection") != "close"


# Faults that others' users reported


def passages_for(body: Any, scored: bool = True) -> Reply:
    """What a Search-R1 server finds: one passage that names the query."""
    found = [
        {"document": {"id": "1", "contents": f'"T"\n{query}'}, "score": 1.5}
        if scored
        else {"id": "1", "contents": f'"T"\n{query}', "url": "http://x/T"}
        for query in body["queries"]
    ]
    return 200, json.dumps({"result": [[one] for one in found]}).encode()


@pytest.mark.parametrize("call", ["search", "open_page"])
def test_verl_4194_ai_agent_book_238_a_server_that_never_answers_ends_in_time(call: str) -> None:
    with silent_server() as address:
        remote = client(address, read_timeout_s=0.4, retries=2, timeout_s=5.0)
        start = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            remote.search("x", 5) if call == "search" else remote.open_page("x")
        assert 1.2 <= time.monotonic() - start < 3.0  # three tries of 0.4 seconds
    for words in (address, "retriever.read_timeout_s=0.4", "3 times", "retriever.retries=2"):
        assert words in str(caught.value)


def test_verl_4194_ai_agent_book_238_all_tries_end_within_the_timeout_of_the_call() -> None:
    with silent_server() as address:
        remote = client(
            address, connect_timeout_s=1.0, read_timeout_s=1.0, retries=50, timeout_s=1.5
        )
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"retriever\.timeout_s=1\.5"):
            remote.search("x", 5)
        assert time.monotonic() - start < 2.5


def test_verl_4194_ai_agent_book_238_a_server_that_drips_ends_in_time() -> None:
    with silent_server(drip=b" ") as address:
        remote = client(address, connect_timeout_s=0.3, read_timeout_s=0.5, retries=0)
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"retriever\.read_timeout_s=0\.5"):
            remote.search("x", 5)
        assert time.monotonic() - start < 2.5


@pytest.mark.parametrize("failure", [(503, b"busy"), (429, b"slow down"), (500, b"<html>"), None])
def test_verl_4194_ai_agent_book_238_a_server_that_fails_half_the_time_is_asked_again(
    failure: Reply,
) -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        return failure if number % 2 == 0 else passages_for(body)

    with answering(reply) as (address, requests):
        remote = client(address)
        for number in range(20):
            ((found,),) = remote.search_many([f"query {number}"], 1)
            assert (found.text, found.score) == (f"query {number}", 1.5)
    assert len(requests.paths) == 40


def test_verl_4194_ai_agent_book_238_retries_are_bounded_and_pauses_grow() -> None:
    times: list[float] = []

    def reply(path: str, body: Any, number: int) -> Reply:
        times.append(time.monotonic())
        return 502, b"bad gateway"

    with answering(reply) as (address, requests):
        remote = client(address, retries=3, backoff_s=0.1)
        with pytest.raises(ServerError, match=r"status 502: 'bad gateway', tried 4 times"):
            remote.search("x", 1)
    assert len(requests.paths) == 4
    pauses = [after - before for before, after in pairwise(times)]
    for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        assert least <= pause < least + 0.1 + 1.0  # the jitter is at most 0.1


def test_search_r1_31_a_server_that_is_ready_after_some_seconds_is_waited_for(
    local: RankBm25Retriever, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own server, whose corpus takes 3 seconds to load."""

    def load() -> RankBm25Retriever:
        time.sleep(3.0)
        return local

    start = time.monotonic()
    with our_server(load) as address:
        loading = httpx.get(f"{address}/health")
        assert (loading.status_code, loading.json()) == (503, {"status": "loading"})
        assert httpx.post(f"{address}/access", json={"urls": ["x"]}).status_code == 503
        config = RetrieverConfig(kind="http", url=address, ready_timeout_s=30)
        retriever = build_retriever(config, None)
        assert 3.0 <= time.monotonic() - start < 8.0
        assert retriever.search("hills", 5) == local.search("hills", 5)
    assert f"waiting for the retrieval server at {address}" in capsys.readouterr().err


def test_search_r1_31_a_server_that_nobody_started_yet_is_waited_for() -> None:
    """Nothing listens for 2 seconds, then a server answers."""
    port = free_port()
    started = threading.Event()

    def start_later() -> None:
        time.sleep(2.0)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        started.set()
        connection, _ = listening.accept()
        connection.recv(65536)
        body = json.dumps({"result": [[]]}).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connection.close()

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thread = threading.Thread(target=start_later)
        thread.start()
        heard: list[str] = []
        client(f"http://127.0.0.1:{port}").wait_until_ready(heard.append)
        assert started.is_set()
        thread.join()
    assert len(heard) == 1
    assert "ConnectError" in heard[0]


def test_search_r1_31_a_server_that_never_gets_ready_is_an_error() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    start = time.monotonic()
    with pytest.raises(ServerError) as caught:
        client(address, ready_timeout_s=1.2).wait_until_ready()
    assert time.monotonic() - start < 2.5
    for words in (address, "retriever.ready_timeout_s=1.2", "mempo.retrieval.serve"):
        assert words in str(caught.value)


# Nonsense

HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>"
SCORED = {"document": {"id": "1", "contents": "T\nx"}, "score": 1.0}


def result(*entries: object) -> bytes:
    return json.dumps({"result": list(entries)}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (HTML, "it is not JSON"),
        (b"", "it is not JSON"),
        (b"\xff\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"null", 'no object with "result"'),
        (b'{"results": []}', 'no object with "result"'),
        (b'{"result": "none"}', '"result" is not a list'),
        (b'{"result": []}', '"result" has 0 entries for 1 requests'),
        (result([], []), '"result" has 2 entries for 1 requests'),
        (result(None), 'each entry of "result" is not a list'),
        (result(SCORED), 'each entry of "result" is not a list'),
        (result([None]), 'a result has no text "contents"'),
        (result([{"document": None, "score": 1}]), 'a result has no text "contents"'),
        (result([{"document": {"id": "1"}, "score": 1}]), 'a result has no text "contents"'),
        (result([SCORED | {"document": {"contents": " \n "}}]), "blank"),
        (result([SCORED | {"score": "high"}]), 'no number as its "score"'),
        (result([{"document": {"id": "1"}}]), 'a result has no text "contents"'),
    ],
)
def test_nonsense_is_an_error_with_address_setting_and_what_came(body: bytes, words: str) -> None:
    with answering(lambda *asked: (200, body)) as (address, requests):
        with pytest.raises(ServerError) as caught:
            client(address).search("x", 5)
        assert len(requests.paths) == 1  # asking again would not help
    assert isinstance(caught.value, RetrievalError)
    shown = repr(body[:50].decode("utf-8", "replace"))[1:-1]
    for part in (f"{address}/retrieve", "retriever.protocol=search_r1", words, shown):
        assert part in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (HTML, "it is not JSON"),
        (result("text"), 'a page has no text "contents"'),
        (result({"url": "u"}), 'a page has no text "contents"'),
        (result({"url": "u", "contents": " "}), "blank"),
        (result(None, None), "2 entries for 1 requests"),
    ],
)
def test_nonsense_as_a_page(body: bytes, words: str) -> None:
    with (
        answering(lambda *asked: (200, body)) as (address, _),
        pytest.raises(ServerError, match="/access: the answer does not fit") as caught,
    ):
        client(address, protocol="asearcher").open_page("x")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("protocol", "other"), [("search_r1", "asearcher"), ("asearcher", "search_r1")]
)
def test_a_server_that_speaks_the_other_protocol(protocol: str, other: str) -> None:
    with (
        answering(lambda path, body, number: passages_for(body, other == "search_r1")) as (url_, _),
        pytest.raises(ServerError, match=rf"set retriever\.protocol={other}"),
    ):
        client(url_, protocol=protocol).wait_until_ready()


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
def test_a_status_that_no_retry_mends(status: int) -> None:
    with answering(lambda *asked: (status, b"go away")) as (address, requests):
        for call in (lambda: client(address).search("x", 1), client(address).wait_until_ready):
            with pytest.raises(ServerError, match=f"status {status}.*'go away'"):
                call()
    assert len(requests.paths) == 2


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(ServerError, match=r"no-such-host\.invalid.*retriever\.url"):
        client("http://no-such-host.invalid:1", retries=1).search("x", 1)


# Other servers' ways


def test_connections_are_used_again() -> None:
    with answering(lambda path, body, number: passages_for(body)) as (address, requests):
        remote = client(address)
        for number in range(30):
            remote.search(str(number), 1)
        remote.close()
    assert (requests.connections, len(requests.paths)) == (1, 30)
    assert requests.bodies[7] == {"queries": ["7"], "topk": 1, "return_scores": True}


def test_more_results_than_asked_for_are_cut() -> None:
    with answering(lambda *asked: (200, result([SCORED] * 9))) as (address, _):
        assert len(client(address).search("x", 5)) == 5


def test_a_search_r1_server_without_pages_gives_the_passages_with_that_title() -> None:
    found = [
        {"document": {"id": i, "contents": contents}, "score": 2.0}
        for i, contents in enumerate(['"Tolm"\nOne.', '"Bel"\nA hill of Tolm.', '"TOLM"\nTwo.'])
    ]

    def reply(path: str, body: Any, number: int) -> Reply:
        return (404, b"no") if path == "/access" else (200, result(found))

    with answering(reply) as (address, requests):
        assert client(address).open_page("tolm") == Page("Tolm", "One.\nTwo.")
        assert client(address).open_page("Nowhere") is None
        assert client(address).open_page("http://x/Tolm") is None
        assert requests.paths == ["/access", "/retrieve", "/access", "/retrieve", "/access"]
        with pytest.raises(ServerError, match="status 404"):
            client(address, protocol="asearcher").open_page("tolm")


def test_an_asearcher_server_that_knows_pages_by_url_only_is_asked_for_the_titles_url() -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        if path == "/retrieve":
            return 200, result([{"contents": "Tolm\nA town.", "url": "http://wiki/Tolm"}])
        known = {"http://wiki/Tolm": {"url": "http://wiki/Tolm", "contents": "The whole page."}}
        return 200, result(*(known.get(one) for one in body["urls"]))

    with answering(reply) as (address, _):
        remote = client(address, protocol="asearcher")
        assert remote.open_page("tolm") == Page("Tolm", "The whole page.", "http://wiki/Tolm")
        assert remote.open_page("Bel") is None


# As the rest of the program meets them

TASK = Task("t", (Objective("Where?", ("there",)),), corpus="c")


def test_failures_become_observations_and_stop_the_run_when_there_are_too_many() -> None:
    with answering(lambda *asked: (200, HTML)) as (address, _):
        config = RetrieverConfig(kind="http", url=address, timeout_s=5, read_timeout_s=1)
        tools = ToolBox({"c": HttpRetriever(config)}, config).session(TASK)
        seconds = itertools.count()
        rate = ErrorRate(0.2, lambda: next(seconds))
        failed = tools.call("search", "x")
        assert failed.text == SEARCH_FAILED
        for _ in range(30):
            rate.record(failed)
        with pytest.raises(ToolFailureError, match="Please log in") as caught:
            rate.record(failed)
        assert address in str(caught.value)
    with silent_server() as address:
        config = RetrieverConfig(
            kind="http",
            url=address,
            timeout_s=1,
            read_timeout_s=0.3,
            connect_timeout_s=1,
            retries=0,
        )
        tools = ToolBox({"c": HttpRetriever(config)}, config).session(TASK)
        late = tools.call("search", "x")
    assert late.text == SEARCH_TIMED_OUT
    assert late.error is not None
    assert "retriever.read_timeout_s=0.3" in late.error


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "q.jsonl"
    rows = [{"question": f"Which town {i}?", "answer": "Tolm"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.questions={path}"


def test_a_run_searches_a_server(url: str, local: RankBm25Retriever, questions: str) -> None:
    overrides = ["data=local", questions, "retriever=http", f"retriever.url={url}"]
    tasks = load_task_sets(compose("train", overrides))
    (retriever,) = tasks.retrievers.values()
    assert retriever.search("hills", 5) == local.search("hills", 5)
    assert {task.corpus for task in tasks.train} == set(tasks.retrievers)


def test_a_run_searches_an_index(tmp_path: Path, questions: str) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    overrides = ["data=local", questions, f"data.corpus={corpus}", "retriever=bm25s"]
    with pytest.raises(IndexFileError, match=rf"build {corpus} {tmp_path / 'c.bm25s'}`"):
        load_task_sets(compose("train", overrides))
    build_index(corpus, tmp_path / "elsewhere")
    config = compose("train", [*overrides, f"retriever.index={tmp_path / 'elsewhere'}"])
    (retriever,) = load_task_sets(config).retrievers.values()
    assert isinstance(retriever, Bm25sRetriever)
    assert retriever.search("second piece", 1)[0].id == "e"


def test_the_home_folder_in_the_path_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    corpus = write_corpus(tmp_path / "c.jsonl")
    build_index(corpus, tmp_path / "i")
    retriever = build_retriever(RetrieverConfig(kind="bm25s", index="~/i"), corpus)
    assert len(retriever.search("second piece", 1)) == 1
    with pytest.raises(ValueError, match=r"there is no home folder ~nobody-of-this-name: write"):
        RetrieverConfig(kind="bm25s", index="~nobody-of-this-name/i")


def test_the_registry_refuses_what_it_cannot_search(local: RankBm25Retriever) -> None:
    with pytest.raises(ConfigError, match=r"give data\.corpus"):
        build_retriever(RetrieverConfig(), None)
    with pytest.raises(ConfigError, match=r"retriever=rank_bm25"):
        build_retriever(RetrieverConfig(kind="bm25s"), DOCUMENTS)
    assert build_retriever(RetrieverConfig(), DOCUMENTS).search("hill", 5) == local.search(
        "hill", 5
    )


# The programs


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mempo.retrieval.serve", "--port", "0", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_server_program_says_when_it_is_ready_and_serves_an_index(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    build_index(corpus, tmp_path / "i")
    server = start("--corpus", str(corpus), "--index", str(tmp_path / "i"))
    assert server.stderr is not None
    try:
        assert server.stderr.readline() == f"loading {corpus}\n"
        line = server.stderr.readline()
        assert line.startswith(f"ready: {corpus} at http://127.0.0.1:")
        remote = client(line.split()[-1])
        assert remote.search("second piece", 1)[0].id == "e"
        assert known_page(remote, "bel").text == DOCUMENTS[2].text.replace("\ud800", "")
    finally:
        server.send_signal(signal.SIGINT)
        _, rest = server.communicate(timeout=20)
    assert "Traceback" not in rest


def test_the_server_program_ends_with_a_sentence_for_a_faulty_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("{oops\n")
    server = start("--corpus", str(corpus))
    _, said = server.communicate(timeout=30)
    assert server.returncode == 2
    assert f"error: {corpus}:1: the line is not JSON" in said
    assert "Traceback" not in said


def test_the_server_program_ends_with_a_sentence_for_a_port_that_is_taken(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start("--corpus", str(corpus), "--port", str(port))
        _, said = server.communicate(timeout=30)
    assert server.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "choose another --port" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "65536"], "--port must be from 0 (any free one) to 65535"),
        (["--port", "-1"], "--port must be from 0"),
        (["--port", "http"], "--port: invalid int value"),
        (["--port", "9" * 5000], "--port: invalid int value"),
        (["--host", ""], "--host is empty"),
        (["--host", "no-such-host.invalid"], "cannot listen on no-such-host.invalid:0"),
        (["--host", "999.1.1.1"], "give --host an address of this machine"),
        (["--host", "ä" * 80], "give --host an address of this machine"),
        (["--host", ":::::"], "cannot listen on [:::::]:0"),
        (["--title-weight", "0"], "--title-weight must be from 1 to 1000"),
        (["--title-weight", "1001"], "--title-weight must be from 1 to 1000"),
        (["--corpus", " "], "--corpus is empty"),
        (["--corpus", "n" * 5000], "--corpus=nnn"),
        (["--corpus", "~nobody-of-this-name/c"], "--corpus=~nobody-of-this-name/c"),
        (["--corpus", "/no/such/file"], "--corpus=/no/such/file: no such file or folder"),
        (["--corpus", "{folder}"], "error: {folder}"),
        (["--index", ""], "--index is empty"),
        (["--index", "/no/such/folder"], "/no/such/folder: there is no index: run `python -m"),
        (["--index", "{corpus}"], "cannot be read (Not a directory): run `python -m"),
        (["--index", "n" * 5000], "cannot be read (File name too long): run `python -m"),
    ],
)
def test_every_wrong_value_of_the_server_program_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl")
    given = [one.format(folder=tmp_path, corpus=corpus) for one in arguments]
    with pytest.raises(SystemExit) as caught:
        serve_main(["--corpus", str(corpus), "--port", "0", *given])
    assert caught.value.code == 2
    assert words.format(folder=tmp_path) in capsys.readouterr().err
