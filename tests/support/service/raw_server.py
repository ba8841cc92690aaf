"""A server that does to each connection what a test says, to be a node that is not well."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class Connection:
    """One connection, as blocking calls; nothing is waited for longer than 30 s."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        peer.settimeout(30)
        self._read = b""

    def head(self) -> bytes:
        """The request's line and headers."""
        while b"\r\n\r\n" not in self._read:
            self._read += self._received()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        return head

    def some(self) -> bytes:
        """Some of the body; empty once the other side has ended."""
        found, self._read = self._read, b""
        return found or self._peer.recv(65_536)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._peer.sendall(data)

    def limit(self, timeout_s: float) -> None:
        """Wait for the other side so long at most."""
        self._peer.settimeout(timeout_s)

    def send_some(self, data: bytes) -> int:
        """Send what the other side takes of it."""
        return self._peer.send(data)

    def _received(self) -> bytes:
        data = self._peer.recv(65_536)
        if not data:
            raise ConnectionResetError("the other side has ended")
        return data


@contextlib.contextmanager
def raw_server(act: Callable[[Connection], None]) -> Iterator[str]:
    """The URL of a server; each connection is closed when ``act`` returns."""
    threads: list[threading.Thread] = []

    def one(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            act(Connection(peer))

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=one, args=(peer,))
            thread.start()
            threads.append(thread)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, args=(listener,))
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()
