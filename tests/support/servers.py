"""Real servers on loopback, on threads of the test: our own, and ones that misbehave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn

from mempo.retrieval.base import Retriever
from mempo.retrieval.serve import RetrievalServer


@contextmanager
def our_server(load: Callable[[], Retriever]) -> Iterator[str]:
    """``mempo.retrieval.serve``'s application in uvicorn; gives its address at once, while it still
    loads."""
    server = RetrievalServer(load)
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    web = uvicorn.Server(uvicorn.Config(server.app, log_level="warning"))
    server.start(lambda: None)
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not web.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        web.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive()


class Requests:
    """What a misbehaving server was asked, and how many connections it was asked through."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.connections = 0


Reply = tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]] | None
"""Status, body and perhaps headers; ``None`` closes the connection without an answer."""


@contextmanager
def answering(
    reply: Callable[[str, Any, int], Reply], get: Callable[[str], bytes] = lambda path: b""
) -> Iterator[tuple[str, Requests]]:
    """A server whose answers ``reply(path, body, number)`` gives; requests count from 0. ``get``
    gives the pages that are only looked at."""
    requests = Requests()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with requests.lock:
                requests.connections += 1

        def do_GET(self) -> None:
            page = get(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with requests.lock:
                number = len(requests.paths)
                requests.paths.append(self.path)
                requests.bodies.append(body)
                requests.headers.append({name.lower(): self.headers[name] for name in self.headers})
            answer = reply(self.path, body, number)
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer[0])
            for name, value in (answer[2] if len(answer) == 3 else {}).items():
                self.send_header(name, value)
            if answer[1].startswith(b"{"):
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *values: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def silent_server(drip: bytes = b"") -> Iterator[str]:
    """Accepts every connection and never answers; with ``drip`` it sends that ten times a second,
    for ever."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    taken: list[socket.socket] = []

    def accept() -> None:
        while not over.is_set():
            try:
                taken.append(listening.accept()[0])
            except OSError:
                return
            if drip:
                threading.Thread(target=send, args=(taken[-1],), daemon=True).start()

    def send(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.1):
                connection.sendall(drip)
        except OSError:
            return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in taken:
            connection.close()
        thread.join(10)


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
