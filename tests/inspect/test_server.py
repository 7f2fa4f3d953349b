"""The inspector shown live, while a run goes on (around the method)."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mempo.inspect import server
from mempo.inspect.reading import run_version
from mempo.inspect.views import Limits
from mempo.runtime.errors import MempoError
from tests.support.inspected_run import Elements, trajectory


@pytest.fixture
def live(tmp_path: Path) -> Iterator[server.InspectorServer]:
    with server.make_server(tmp_path, Limits(), port=0) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def ask(live: server.InspectorServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.HOST, live.server_port, timeout=20)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode("utf-8")
    connection.close()
    return answer.status, text


def test_server_shows_what_the_run_has_written_since(
    live: server.InspectorServer, tmp_path: Path
) -> None:
    status, page = ask(live, "/")
    assert status == 200
    assert "no epoch has ended" in page
    assert Elements(page).data["version"] == ask(live, "/version")[1] == run_version(tmp_path)

    path = tmp_path / "trajectories.jsonl"
    text = json.dumps(trajectory("t", 0)) + "\n"
    path.write_text(text + text[:30])  # the second line is half written
    before = ask(live, "/version")[1]
    assert before != Elements(page).data["version"]
    data = Elements(ask(live, "/")[1]).data
    assert (len(data["trajectories"]), data["version"]) == (1, before)
    path.write_text(text + text)
    assert len(Elements(ask(live, "/")[1]).data["trajectories"]) == 2
    assert "connect-src &#39;self&#39;" in ask(live, "/")[1]

    path.write_text("{oops}\n" + text)
    status, told = ask(live, "/")
    assert status == 500
    assert "trajectories.jsonl, line 1" in told


def test_server_answers_only_under_its_own_name(live: server.InspectorServer) -> None:
    assert live.server_address[0] == "127.0.0.1"
    assert ask(live, "/", host="evil.example")[0] == 403
    assert ask(live, "/version", host=f"localhost:{live.server_port}")[0] == 200
    assert ask(live, "/../trajectories.jsonl")[0] == 404


def test_a_port_in_use_is_told(live: server.InspectorServer, tmp_path: Path) -> None:
    with pytest.raises(MempoError, match=rf"port {live.server_port}: .*choose another with --port"):
        server.make_server(tmp_path, Limits(), live.server_port)
