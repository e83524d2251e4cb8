"""A server of a few read-only pages, on this machine only and with a secret address."""

from __future__ import annotations

import contextlib
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from brainstorm.hooks.base import LOG

#: The loopback interface: other machines cannot reach it.
HOST = "127.0.0.1"

#: Connections at a time; a further one closes the oldest. So clients can neither exhaust the
#: training nor shut out others by keeping connections open.
MOST_CONNECTIONS = 16

#: Seconds after which an idle connection is closed.
PATIENCE = 5

#: Browsers only show the page and run its script file, which may fetch more from this server.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

#: From the name of a page to the function that makes its type and content.
Pages = Mapping[str, Callable[[], tuple[str, str]]]


class PageServer:
    """Serves pages in a thread of its own until `close`.

    Every address contains a random token; without it, the answer is always "not found". No files
    are served, only these pages, and only GET is supported. Functions of pages are called from
    other threads; the name of the first page, at `address`, is empty. A port of 0 is any free one.
    """

    def __init__(self, pages: Pages, port: int = 0) -> None:
        token = secrets.token_urlsafe(24)
        self._server = _Server((HOST, port), _Request)
        self._server.pages = {f"/{token}/{name}".encode(): page for name, page in pages.items()}
        self.address = f"http://{HOST}:{self._server.server_port}/{token}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="brainstorm-page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the server; the port is free afterwards."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        self.pages: dict[bytes, Callable[[], tuple[str, str]]] = {}
        self._open: dict[Any, None] = {}  # connections, oldest first
        super().__init__(*args)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's looks up the host name
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        while len(self._open) >= MOST_CONNECTIONS:
            with contextlib.suppress(OSError, StopIteration, KeyError):  # it has ended already
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end and closes it
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End what a slow client, or a forked process with a copy of the sockets, would keep."""
        for connection in (self.socket, *self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # answers are still sent
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log broken connections at level DEBUG only."""
        LOG.debug("page server: a request failed", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version, sys_version = "brainstorm", ""

    def do_GET(self) -> None:
        own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in own:  # another host name that resolves to this machine
            self._answer(403, "text/plain", "forbidden")
            return
        asked, answer = self.path.encode("latin-1", "replace"), (404, "text/plain", "not found")
        for path, page in self.server.pages.items():
            if secrets.compare_digest(path, asked):  # in constant time: timing reveals nothing
                answer = 200, *page()
        self._answer(*answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer anything but an HTTP GET; nothing of the request is repeated."""
        self._answer(405 if code == 501 else code, "text/plain", "only GET is supported")

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode(errors="replace")  # names may contain lone surrogates
        self.close_connection = True
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if code == 405:
            self.send_header("Allow", "GET")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the output belongs to the training."""
