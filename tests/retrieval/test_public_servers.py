"""Servers of other projects as they publish them, over real connections (section 11)."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import httpx
import pytest

from mempo.agent.tools import ToolBox
from mempo.config import RetrieverConfig
from mempo.retrieval import Document, HttpRetriever, Page, Passage, RankBm25Retriever
from mempo.retrieval.http import ServerError
from mempo.runtime.errors import ConfigError
from mempo.trajectory import Objective, Task
from tests.support.public_servers import (
    WIKI,
    Answer,
    Pages,
    address,
    asearcher,
    asearchers_client,
    search_engine,
    search_r1,
)
from tests.support.servers import Reply, answering, our_server


def client(url: str, protocol: str = "search_r1", **settings: Any) -> HttpRetriever:
    quick: dict[str, Any] = {"read_timeout_s": 5.0, "timeout_s": 10.0, "backoff_s": 0.01}
    quick |= {"url": url, "protocol": protocol, "ready_timeout_s": 60.0}
    return HttpRetriever(RetrieverConfig(kind="http", **(quick | settings)))


def result(*documents: Any) -> bytes:
    return json.dumps({"result": [list(documents)]}).encode()


# Search-R1's


def test_search_r1s_server_over_a_corpus() -> None:
    with answering(search_r1) as (url, _):
        remote = client(url)
        remote.wait_until_ready()
        found = remote.search("tolm", 5)
        assert [(p.id, p.title, p.text, p.score) for p in found] == [
            ("0", "Tolm", "A town in the hills.", 0.75),
            ("1", "Bel", "A hill of Tolm.", 0.5),
        ]
        assert remote.open_page("tolm") == Page("Tolm", "A town in the hills.")


ENGINE = (
    ("No title.", "No snippet available."),
    ("Tolm - Wikipedia", "Tolm is a town ..."),
    ("Bel", ""),
    ("", "A snippet without a title."),
)


@pytest.mark.parametrize("wrapped", [True, False])
def test_search_engines_give_documents_without_ids_and_scores(wrapped: bool) -> None:
    with answering(search_engine(*ENGINE, wrapped=wrapped)) as (url, _):
        remote = client(url)
        remote.wait_until_ready()
        found = remote.search("tolm", 10)
        assert found == [Passage(title, text) for title, text in ENGINE]
        assert [passage.score for passage in found] == [None] * 4
        assert remote.search("tolm", 3) == found[:3]  # they do not read topk
        assert remote.open_page("tolm - wikipedia") == Page(*ENGINE[1])
        assert remote.open_page("Nowhere") is None


def test_a_search_engine_that_finds_nothing() -> None:
    with answering(search_engine()) as (url, _):
        remote = client(url)
        remote.wait_until_ready()
        assert remote.search("tolm", 5) == []


@pytest.mark.parametrize("score", [None, 0, -1.5])
def test_scores_may_be_missing_or_null(score: float | None) -> None:
    entry = {"document": {"id": 7, "contents": "T\nx"}, "score": score}
    with answering(lambda *asked: (200, result(entry))) as (url, _):
        (found,) = client(url).search("x", 5)
    assert (found.id, found.title, found.text, found.score) == ("7", "T", "x", score)


# ASearcher's

PAGES = {address("Tolm"): "Tolm is a town.\nIt has a mayor."}


def test_asearchers_server() -> None:
    with answering(asearcher(PAGES)) as (url, requests):
        remote = client(url, "asearcher")
        remote.wait_until_ready()
        found = remote.search("tolm", 1)
        assert found == [Passage("Tolm", WIKI["Tolm"], address("Tolm"), "0")]
        assert remote.open_page(address("Tolm")) == Page(
            address("Tolm"), PAGES[address("Tolm")], address("Tolm")
        )
        assert remote.open_page("Tolm") == Page("Tolm", PAGES[address("Tolm")], address("Tolm"))
        assert remote.open_page("bel") == Page("Bel", WIKI["Bel"], address("Bel"))
        assert remote.open_page(address("Nowhere")) is None
    assert requests.bodies[0] == {"queries": ["ready"], "topk": 1, "return_scores": False}


@pytest.mark.parametrize("pages", ["missing", "not loaded", "fails", "not enabled"])
def test_asearchers_server_without_pages_gives_the_passages_of_a_title(
    pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(asearcher(pages)) as (url, _):
        remote = client(url, "asearcher", retries=1)
        remote.wait_until_ready()
        assert remote.open_page("tolm") == Page("Tolm", WIKI["Tolm"], address("Tolm"))
        assert remote.open_page("Bel") == Page("Bel", WIKI["Bel"], address("Bel"))
        for key in ("Nowhere", address("Tolm")):
            if pages in ("missing", "not loaded"):
                assert remote.open_page(key) is None
            else:  # a server with pages can fail so, too: nothing becomes an empty result
                with pytest.raises(ServerError, match=r"/access: status 50[03].*tried 2 times"):
                    remote.open_page(key)
    assert [record.message for record in caplog.records if "no pages" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


def test_a_server_whose_pages_were_there_and_fail_now_is_an_error() -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        return asearcher(PAGES if number == 0 else "fails")(path, body, number)

    with answering(reply) as (url, _):
        remote = client(url, "asearcher", retries=0)
        assert remote.open_page(address("Tolm")) is not None
        with pytest.raises(ServerError, match="status 500"):
            remote.open_page("Tolm")


def test_pages_that_are_blank_with_an_error_are_none() -> None:
    page = {"url": "u", "contents": "", "error": "Page not found"}
    body = json.dumps({"result": [page]}).encode()
    with answering(lambda *asked: (200, body)) as (url, _):
        assert client(url, "asearcher").open_page("http://x/u") is None


DOCUMENTS = [
    Document("a", "Upper Tolm", "A town.", "http://x/Tolm"),
    Document("b", "Bel  and\tMo", "Two hills by the town."),
    Document("c", "", "A town without a name."),
]


def test_asearchers_client_finds_an_address_in_every_document_of_our_server() -> None:
    local = RankBm25Retriever(DOCUMENTS)
    with our_server(lambda: local) as url:
        remote = client(url, "asearcher")
        remote.wait_until_ready()
        body = {"queries": ["town"], "topk": 5, "return_scores": False}
        (documents,) = httpx.post(f"{url}/retrieve", json=body).json()["result"]
        texts, urls = asearchers_client(documents)
        assert sorted(zip(urls, texts, strict=True)) == [
            ("Bel  and\tMo", '"Bel and Mo"\nTwo hills by the town.'),
            ("c", '"c"\nA town without a name.'),
            ("http://x/Tolm", '"Upper Tolm"\nA town.'),
        ]
        opened = httpx.post(f"{url}/access", json={"urls": urls}).json()["result"]
        assert [page and page["url"] for page in opened] == urls
        found = {passage.id: passage for passage in remote.search("town", 5)}
        assert {key: passage.url for key, passage in found.items()} == {
            "a": "http://x/Tolm",
            "b": "",
            "c": "",
        }
        assert (found["c"].title, found["c"].text) == ("c", "A town without a name.")


# The other protocol


@pytest.mark.parametrize(
    ("reply", "protocol", "other"),
    [
        (search_r1, "asearcher", "search_r1"),
        (search_engine(*ENGINE), "asearcher", "search_r1"),
        (asearcher(PAGES), "search_r1", "asearcher"),
        (asearcher("missing"), "search_r1", "asearcher"),
    ],
)
def test_a_server_of_the_other_protocol_is_told_at_once(
    reply: Answer, protocol: str, other: str
) -> None:
    with answering(reply) as (url, requests):
        start = time.monotonic()
        with pytest.raises(ServerError, match=rf"set retriever\.protocol={other}") as caught:
            client(url, protocol).wait_until_ready()
        assert time.monotonic() - start < 3.0
        assert f"{url}/retrieve" in str(caught.value)
        assert len(requests.paths) <= 3
        client(url, other).wait_until_ready()


def test_a_server_that_fails_for_both_protocols_is_waited_for() -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        return (500, b"loading") if number < 4 else search_r1(path, body, number)

    heard: list[str] = []
    with answering(reply) as (url, requests):
        client(url).wait_until_ready(heard.append)
    assert len(heard) == 1
    assert [body["return_scores"] for body in requests.bodies] == [True, False, True, False, True]


# Blank results, redirects, half characters, log lines


@pytest.mark.parametrize("blank", ["", " \n ", '""\n', '""'])
def test_a_blank_result_among_good_ones_is_left_out_counted_and_told(
    blank: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"document": {"id": "1", "contents": '"T"\nx'}, "score": 2.0}
    body = result(good, {"document": {"id": "2", "contents": blank}, "score": 1.0}, good)
    with answering(lambda *asked: (200, body)) as (url, _):
        remote = client(url)
        for count in range(1, 4):
            assert [passage.id for passage in remote.search("tolm", 3)] == ["1", "1"]
            assert remote.blank_results == count
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{url} gave a blank result for 'tolm'" in record.message


NEW = "https://new.example/api"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (f"{NEW}/retrieve", f"{NEW}/retrieve: set retriever.url={NEW}. It answered 'moved'"),
        ("/retrieve/", "/retrieve/: correct retriever.url. It answered 'moved'"),
        ("/login?next=retrieve", "/login?next=retrieve: correct retriever.url"),
    ],
)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_its_target_is_shown(
    status: int, location: str, words: str
) -> None:
    def reply(path: str, body: Any, number: int) -> Reply:
        return status, b"moved", {"Location": location}

    with answering(reply) as (url, requests):
        target = words if location.startswith(NEW) else f"{url}{words}"
        for call in (client(url).wait_until_ready, lambda: client(url).search("x", 1)):
            with pytest.raises(ServerError) as caught:
                call()
            assert f"{url}/retrieve: status {status}, a redirect to {target}" in str(caught.value)
    assert requests.paths == ["/retrieve", "/retrieve"]


def test_a_redirect_to_another_server_is_mended_by_its_address() -> None:
    with (
        answering(search_r1) as (new, _),
        answering(lambda *asked: (308, b"", {"Location": f"{new}/retrieve"})) as (old, _),
    ):
        with pytest.raises(ServerError, match=f"set retriever.url={new}\\. ") as caught:
            client(old).search("x", 1)
        mended = str(caught.value).split("retriever.url=")[1].split(". ")[0]
        assert len(client(mended).search("x", 5)) == 2


def test_half_a_character_in_an_answer_is_a_failed_call_with_a_sentence() -> None:
    body = b'{"result": [[{"document": {"id": "1", "contents": "T\\nhalf \\ud800"}, "score": 1}]]}'
    with answering(lambda *asked: (200, body)) as (url, _):
        config = RetrieverConfig(kind="http", url=url)
        task = Task("t", (Objective("Where?", ("there",)),), corpus="c")
        failed = ToolBox({"c": HttpRetriever(config)}, config).session(task).call("search", "x")
    assert failed.error is not None
    assert "not valid text" in failed.error
    assert "not valid text" in failed.text
    (failed.text + failed.error).encode()


def test_requests_are_not_logged_unless_somebody_asks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a root logger of level INFO, as Hydra sets it."""
    monkeypatch.setattr(logging.getLogger("httpx"), "level", logging.NOTSET)
    logging.getLogger("httpx").manager._clear_cache()  # type: ignore[attr-defined]
    caplog.set_level(logging.INFO)
    with answering(search_r1) as (url, _):
        client(url).search("x", 1)
        assert caplog.records == []
        logging.getLogger("httpx").setLevel(logging.INFO)
        client(url).search("x", 1)
    assert [record.name for record in caplog.records] == ["httpx"]


# Wrong values


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://host:99999999",
        "http://host:0",
        "http://host:port",
        "http://a:b:c",
        "http://" + "x" * 70_000,
        "http://" + "\u2603" * 80,
        "http://a\x00b",
        "http://..",
        "http://-",
        "http://999.999.999.999",
        "https://127.0.0.1:1",
    ],
)
def test_an_address_that_is_none_is_a_sentence(url: str) -> None:
    def use() -> None:
        client(url, retries=0, ready_timeout_s=0.2).wait_until_ready()

    with pytest.raises((ConfigError, ServerError)) as caught:
        use()
    assert "retriever.url" in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout_s": 1e9, "read_timeout_s": 1e9, "connect_timeout_s": 1e9},
        {"ready_timeout_s": 1e9},
        {"backoff_s": 1e9, "retries": 2**31 - 1},
        {"workers": 2**31 - 1},
        {"timeout_s": 1e-9, "read_timeout_s": 1e-9, "connect_timeout_s": 1e-9},
    ],
)
def test_the_largest_and_smallest_settings_work_or_are_a_sentence(
    settings: dict[str, Any],
) -> None:
    with answering(search_r1) as (url, _):
        config = RetrieverConfig(kind="http", url=url, **settings)
        remote = HttpRetriever(config)
        if config.timeout_s > 1:
            remote.wait_until_ready()
            assert len(remote.search("x", 5)) == 2
        else:
            with pytest.raises(TimeoutError, match=r"retriever\.timeout_s=1e-09"):
                remote.search("x", 5)


@pytest.mark.parametrize("name", ["top_k", "title_weight"])
def test_counts_that_nobody_means_are_refused(name: str) -> None:
    counts: dict[str, Any] = {name: 1000}
    RetrieverConfig(**counts)
    with pytest.raises(ValueError, match=name):
        RetrieverConfig(**(counts | {name: 1001}))
