"""A service with bounds of its own, and requests to it that need not be well behaved."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

NDJSON = "application/x-ndjson"


@dataclass
class Flow:
    """A served engine."""

    engine: Store
    port: int

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, body."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def post(self, body: bytes, **headers: str) -> tuple[int, Any]:
        """Append NDJSON to topic `t`."""
        asked = {"content_type": NDJSON, **headers}
        status, _, content = self.ask("POST", "/v1/topics/t/messages", body, **asked)
        return status, json.loads(content)

    def fill(self, count: int, size: int = 10) -> None:
        """Append messages to topic `t`, each with its number first."""
        numbered = [Message("t", f"{number}:".encode().ljust(size, b"x"), ("k",)) for number in range(count)]
        for start in range(0, count, 500):
            self.engine.append(numbered[start : start + 500])

    def count(self) -> int:
        """Messages of topic `t`."""
        return sum(queue.max_offset - queue.min_offset for queue in self.engine.topic("t").queues)

    def connect(self, head: str, receive_bytes: int | None = None) -> socket.socket:
        """A connection on which a request's head was sent; with a small window it takes little at a time."""
        connection = socket.socket()
        connection.settimeout(60)
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        return connection


@contextlib.contextmanager
def flow(root: Path, cold_url: str | None = None, **bounds: object) -> Iterator[Flow]:
    """A service; ``bounds`` are settings with ``__`` for the dot."""
    settings = tiny_settings(**bounds)
    engine = Store.open(root / "store", cold_url=cold_url or f"file://{root}/cold", settings=settings)
    engine.start()
    try:
        with served(engine, settings, threading.Event()) as url:
            yield Flow(engine, int(url.rpartition(":")[2]))
    finally:
        engine.close()
