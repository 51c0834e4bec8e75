"""Local web server of the viewer, on the standard library's, for the user who started it.

It listens on the loopback address. A request must name the server by that address, so that no other web page can reach
it through a host name of its own (DNS rebinding), and must contain the token from the page's address, so that no other
user of the machine can. Data is accepted only from the server's own page. Every connection carries one request and is
then closed, so that the body of a refused request is never read as the next request. A request must arrive in time, and
if too many connections wait for theirs, the oldest are closed.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from .answers import Answers

HOST = "127.0.0.1"
MOST_CONNECTIONS = 64
"""Limit on connections that wait for a request, each with a thread. A browser uses six, and opens some in advance."""
ARRIVAL_SECONDS = 30.0
"""Time limit for a whole request, with its image, to arrive from this machine, and for its answer to be read."""
_LARGEST_UPLOAD = 64 * 2**20
_PIECE = 2**20
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data: blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Refused(Exception):
    """Error for a refused request, with its HTTP status and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Viewer(ThreadingHTTPServer):
    """Server for the page of one model. `port=0` takes a free port; `address` is the URL of the page."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answers: Answers, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)
        self.answers = answers
        self.page = files(__package__).joinpath("viewer.html").read_bytes()
        self.token = secrets.token_urlsafe(16)
        self.lock = threading.Lock()
        """Held while the model answers, because it handles one request at a time."""
        self._waiting: dict[int, socket.socket] = {}
        """Connections whose request has not arrived yet, the oldest first."""
        self._books = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own; if too many are idle, close the oldest."""
        with self._books:
            self._waiting[id(request)] = request
            while len(self._waiting) > MOST_CONNECTIONS:
                with suppress(OSError):  # the other side may have closed it already
                    self._waiting.pop(next(iter(self._waiting))).shutdown(socket.SHUT_RDWR)  # this ends its thread
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.arrived(request)

    def arrived(self, request: Any) -> None:
        """Mark a connection as no longer waiting: its request has arrived."""
        with self._books:
            self._waiting.pop(id(request), None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore pages that were closed before their answer, and requests that never arrived."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    protocol_version = "HTTP/1.0"  # closes every connection after one request
    timeout = ARRIVAL_SECONDS

    def do_GET(self) -> None:
        self._answer(lambda: b"", self._get)

    def do_POST(self) -> None:
        self._answer(self._body, self._post)

    def _get(self, _: bytes) -> tuple[str, bytes]:
        answers = self.server.answers
        match self._place():
            case [""]:
                return "text/html; charset=utf-8", self.server.page
            case ["model"]:
                return _as_json(answers.about())
            case ["image", row] if row.isdecimal() and int(row) < answers.images:
                return "image/png", answers.training_image(int(row))
            case ["labels.csv"]:
                return "text/csv; charset=utf-8", answers.decisions.text().encode()
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _post(self, body: bytes) -> tuple[str, bytes]:
        match self._place():
            case ["look"]:
                return _as_json(self.server.answers.look(body))
            case ["where"]:
                return _as_json(self.server.answers.where(body))
            case ["decide"]:
                return _as_json(self.server.answers.decide(json.loads(body)))
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _place(self) -> list[str]:
        """Parts of the path after the token."""
        return self.path.split("/")[2:]

    def _check(self) -> None:
        """Raise `Refused` unless the request names this server by its own address and has the token."""
        if f"http://{self.headers.get('Host')}" not in self._names():
            raise Refused(HTTPStatus.FORBIDDEN, "this page is for the machine that it runs on")
        given = self.path.split("/")[1:2] if self.path.count("/") > 1 else [""]
        if not hmac.compare_digest(given[0].encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "open the whole address that `cnngp view` printed")

    def _body(self) -> bytes:
        origin = self.headers.get("Origin")
        if origin is not None and origin not in self._names():
            raise Refused(HTTPStatus.FORBIDDEN, "only the viewer's own page may send data here")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is")
        if len(length) > 12 or int(length) > _LARGEST_UPLOAD:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "images of up to 64 MB are taken")
        until, body = time.monotonic() + self.timeout, bytearray()
        while len(body) < int(length):
            piece = self.rfile.read1(min(int(length) - len(body), _PIECE))
            if not piece or time.monotonic() > until:
                raise TimeoutError("the request did not arrive")
            body += piece
        return bytes(body)

    def _names(self) -> tuple[str, ...]:
        return tuple(f"http://{name}:{self.server.server_port}" for name in (HOST, "localhost"))

    def _answer(self, read: Callable[[], bytes], make: Callable[[bytes], tuple[str, bytes]]) -> None:
        status = HTTPStatus.OK
        try:
            self._check()
            body = read()  # before the lock, so that a stalled upload blocks no other request
            self.server.arrived(self.request)
            with self.server.lock:
                kind, content = make(body)
        except Refused as error:
            status, (kind, content) = error.status, _as_json({"error": str(error)})
        except (ConnectionError, TimeoutError):
            raise
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            # An image that is unreadable or too large, JSON nested too deeply, a decision that cannot be written.
            status, (kind, content) = HTTPStatus.BAD_REQUEST, _as_json({"error": " ".join(str(error).split())})
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line for every picture would hide the command's output."""


def _as_json(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value, allow_nan=False).encode()
