"""The page on localhost while a run goes on."""

from __future__ import annotations

import threading
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from mempo.inspect.document import page_bytes, render_page
from mempo.inspect.reading import read_run, run_version
from mempo.inspect.views import Limits
from mempo.runtime.errors import MempoError

HOST: Final = "127.0.0.1"


class LivePage:
    """The page of a run folder, written anew when it is asked for and the run has written more.

    A training run shares the machine, so nothing is done before a browser asks.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        self._limits = limits
        self._lock = threading.Lock()
        self._version: str | None = None
        self._page = b""

    @property
    def version(self) -> str:
        """Changes whenever the run has written something."""
        return run_version(self.folder)

    def read(self) -> bytes:
        """The newest page. Raises ``MempoError`` for a file that cannot be read."""
        with self._lock:
            version = self.version
            if version != self._version:
                run = read_run(self.folder, waiting=True)
                self._page = page_bytes(render_page(run, self._limits, version))
                self._version = version
            return self._page


class InspectorServer(ThreadingHTTPServer):
    """Answers on 127.0.0.1 only, and only under that name, so that no page of another site can
    read a run through a name that it points here."""

    daemon_threads = True

    def __init__(self, page: LivePage, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.page = page

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/"

    @cached_property
    def names(self) -> frozenset[str]:
        """The ``Host`` headers that are answered."""
        return frozenset(f"{name}:{self.server_port}" for name in (HOST, "localhost"))


def make_server(folder: Path, limits: Limits, port: int) -> InspectorServer:
    """A server that listens; ``port`` 0 takes a free one. Raises ``MempoError`` for a port in use
    and for a folder that cannot be shown."""
    read_run(folder, waiting=True)
    try:
        return InspectorServer(LivePage(folder, limits), port)
    except (OSError, OverflowError) as error:
        raise MempoError(f"port {port}: {error}; choose another with --port") from None


class _Handler(BaseHTTPRequestHandler):
    server: InspectorServer

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"open this page by its own address\n")
        elif self.path == "/":
            try:
                page = self.server.page.read()
            except MempoError as error:
                message = f"error: {error}\n".encode(errors="backslashreplace")
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", message)
            else:
                self._send(HTTPStatus.OK, "text/html", page)
        elif self.path == "/version":
            self._send(HTTPStatus.OK, "text/plain", self.server.page.version.encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is only one page: /\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line on the terminal."""
