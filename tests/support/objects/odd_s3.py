"""A server that speaks as much of S3 as one object needs, and is slow, refuses or breaks off when told."""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_MODIFIED = "Sat, 21 Nov 2026 21:00:00 GMT"


@dataclass
class Behaviour:
    """What the server does; the test may change it at any time. Requests are counted by method and range."""

    data: bytes = b""
    etag: str = '"one"'
    #: Answer everything with this status and S3 error code.
    refuse: tuple[int, str] | None = None
    #: Cut each of so many answers off after so many bytes of body.
    cuts: list[int] = field(default_factory=list)
    #: Give the object another etag when an answer was cut off.
    replaced_meanwhile: bool = False
    #: Seconds between two bytes of a body.
    trickle_s: float = 0.0
    #: Bytes a second that are read of a request's body.
    reads_bytes_per_s: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    received: int = 0


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
    behaviour: Behaviour


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        asked = self.headers.get("Range", "")
        behaviour.requests.append(("GET", asked))
        if self._refused():
            return
        if self.headers.get("If-Match", behaviour.etag) != behaviour.etag:
            self._error(412, "PreconditionFailed")
            return
        size, start = len(behaviour.data), 0
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, size = int(first), int(last) + 1
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{len(behaviour.data)}")
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", behaviour.etag)
        self.send_header("Last-Modified", _MODIFIED)
        self.end_headers()
        self._send_body(behaviour.data[start:size])

    def _send_body(self, data: bytes) -> None:
        behaviour = self.server.behaviour
        if behaviour.cuts:
            self.wfile.write(data[: behaviour.cuts.pop(0)])
            self.wfile.flush()
            if behaviour.replaced_meanwhile:
                behaviour.etag = '"two"'
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif behaviour.trickle_s:
            with contextlib.suppress(OSError):
                for position in range(len(data)):
                    self.wfile.write(data[position : position + 1])
                    time.sleep(behaviour.trickle_s)
        else:
            self.wfile.write(data)

    def do_PUT(self) -> None:
        behaviour = self.server.behaviour
        behaviour.requests.append(("PUT", ""))
        left = int(self.headers["Content-Length"])
        piece_bytes = 16 << 10
        while left:
            piece = self.rfile.read1(min(left, piece_bytes)) if hasattr(self.rfile, "read1") else b""
            if not piece:
                return
            left -= len(piece)
            behaviour.received += len(piece)
            if behaviour.reads_bytes_per_s:
                time.sleep(len(piece) / behaviour.reads_bytes_per_s)
        if not self._refused():
            self.send_response(200)
            self.send_header("ETag", behaviour.etag)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _refused(self) -> bool:
        refuse = self.server.behaviour.refuse
        if refuse is not None:
            self._error(*refuse)
        return refuse is not None

    def _error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def odd_s3(behaviour: Behaviour) -> Iterator[str]:
    """Its URL."""
    with _Server(("127.0.0.1", 0), _Handler, bind_and_activate=False) as server:
        server.behaviour = behaviour
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)  # a slow reader shows at once
        server.server_bind()
        server.server_activate()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(5)
